#include "tests/support/sessions.h"

#include <gtest/gtest.h>

#include <cstring>

#include "onnx_passes/functions/functions.h"

namespace onnx_train {

int count(const Plan& plan, const char* op) {
  int n = 0;
  for (const PlanStep& step : plan.steps()) n += step.node->is(op, kDomain);
  return n;
}

std::map<std::string, Tensor> states_of(Session& session) {
  std::map<std::string, Tensor> states;
  for (const std::string& name : session.state().names()) states[name] = session.state().get(name);
  return states;
}

void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, x] : a) EXPECT_EQ(std::memcmp(x.data(), b.at(name).data(), x.bytes()), 0) << name;
}

DeviceCopies::DeviceCopies(Device& device, const TensorMap& tensors) : device_(device) {
  const std::unique_ptr<Stream> stream = device.make_stream();
  for (const auto& [name, tensor] : tensors) {
    void* const data = device.allocate(tensor.bytes());
    copies_[name] = Tensor::on_device(tensor.dtype(), tensor.shape(), data);
    stream->copy_from_host(data, tensor.data(), tensor.bytes());
  }
  stream->synchronize();
}

DeviceCopies::~DeviceCopies() {
  for (const auto& [name, tensor] : copies_) device_.free(const_cast<void*>(tensor.data()));
}

}  // namespace onnx_train
