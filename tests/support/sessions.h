// What tests of sessions look at: a plan's nodes, and the state to the last bit; and inputs in device memory.
#pragma once

#include <map>
#include <string>

#include "runtime/session/session.h"

namespace onnx_train {

// Calls of our operator `op` that the plan runs.
int count(const Plan& plan, const char* op);

std::map<std::string, Tensor> states_of(Session& session);

// Both hold the same tensors, bit for bit.
void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b);

// Copies of tensors in the memory of a device, freed with this object. Work that reads them must then be done.
class DeviceCopies {
 public:
  DeviceCopies(Device& device, const TensorMap& tensors);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;

  const TensorMap& tensors() const { return copies_; }

 private:
  Device& device_;
  TensorMap copies_;
};

}  // namespace onnx_train
