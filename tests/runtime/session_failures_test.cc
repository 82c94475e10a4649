// Sessions on a device that runs out of memory.
#include <gtest/gtest.h>

#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/failing_device.h"

namespace onnx_train::session_failures_test {
namespace {

Model make_training_model() {
  Model model = import_model([] {
    onnx::ModelProto proto;
    to_proto(from_text(R"(
<ir_version: 10, opset_import: ["" : 21]>
network (float[N,3] x) => (float[N,2] y)
<float[3,4] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 0.1, 0.2, 0.3},
 float[4,2] v = {0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8}> {
  a = MatMul(x, w)
  b = Tanh(a)
  y = MatMul(b, v)
})"),
             &proto);
    return proto;
  }());
  BuildOptions options;
  options.loss = "mse(y, target)";
  build_training_model(&model, options);
  return model;
}

TensorMap batch_of(int64_t n) {
  return {{"x", Tensor::full(DType::kFloat, {n, 3}, 0.5)}, {"target", Tensor::full(DType::kFloat, {n, 2}, 0.25)}};
}

std::string bytes(const Tensor& tensor) { return {static_cast<const char*>(tensor.data()), tensor.bytes()}; }

// Runs batches of growing size; where the device refuses memory, once more. The weights afterwards, empty when the
// session could not be made.
std::string train(Device* device, int* failures) {
  SessionOptions options;
  options.device = device;
  std::unique_ptr<Session> session;
  try {
    session = std::make_unique<Session>(make_training_model(), options);
  } catch (const Error&) {
    ++*failures;
    return "";
  }
  for (const int64_t n : {2, 64, 2, 4096, 64}) {
    try {
      session->run("step", batch_of(n));
    } catch (const Error&) {
      ++*failures;
      // A plan that was there before runs in the memory that is there now; this run is not counted.
      const std::string before = bytes(session->state().get("w"));
      session->run("evaluate", batch_of(2));
      EXPECT_EQ(bytes(session->state().get("w")), before);
      session->run("step", batch_of(n));
    }
  }
  return bytes(session->state().get("w")) + bytes(session->state().get("v"));
}

TEST(SessionFailures, WhicheverAllocationFailsTheSessionGoesOnAndNothingLeaks) {
  FailingDevice whole;
  int failures = 0;
  const std::string expected = train(&whole, &failures);
  ASSERT_EQ(failures, 0);
  ASSERT_EQ(whole.held(), 0u);
  ASSERT_GT(whole.made(), 5);
  int trained = 0;
  for (int n = 0; n < whole.made(); ++n) {
    FailingDevice device(n);
    failures = 0;
    const std::string result = train(&device, &failures);
    EXPECT_EQ(failures, 1) << "allocation " << n;
    EXPECT_EQ(device.held(), 0u) << "allocation " << n;
    if (result.empty()) continue;
    EXPECT_EQ(result, expected) << "allocation " << n;
    ++trained;
  }
  EXPECT_GT(trained, 0);
}

}  // namespace
}  // namespace onnx_train::session_failures_test
