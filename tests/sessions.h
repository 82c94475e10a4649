// What tests of optimizer updates look at: a plan's nodes, and the state of sessions to the last bit.
#pragma once

#include <map>
#include <string>

#include "runtime/session.h"

namespace onnx_train {

// Calls of our operator `op` that the plan runs.
int count(const Plan& plan, const char* op);

std::map<std::string, Tensor> states_of(Session& session);

// Both hold the same tensors, bit for bit.
void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b);

}  // namespace onnx_train
