#include <gtest/gtest.h>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::drop_zero_biases_test {
namespace {

Model model_of_biases() {
  return from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,2,4,4] x, float[2,2,3,3] w, float[3,2] m, float[2,2] p)
        => (float[1,2,4,4] y, float[1,2,4,4] v, float[1,2,6,6] t, float[3,2] z)
    <float zero = {0}, int64[1] two = {2}, float[2] bias = {0, 1}> {
      zeros = Expand (zero, two)
      y = Conv <pads = [1, 1, 1, 1]> (x, w, zeros)
      v = Conv <pads = [1, 1, 1, 1]> (x, w, bias)
      t = ConvTranspose (x, w, zeros)
      z = Gemm (m, p, zeros)
    })");
}

TEST(DropZeroBiases, LeavesOthers) {
  Model model = model_of_biases();
  fold_constants(model);
  EXPECT_TRUE(drop_zero_biases(model));
  EXPECT_FALSE(drop_zero_biases(model));
  for (const Value* output : model.graph->outputs()) {
    EXPECT_EQ(output->producer()->num_inputs(), output->name() == "v" ? 3 : 2) << output->name();
  }
}

TEST(DropZeroBiases, GivesTheSameBits) {
  const TensorMap inputs = {{"x", random_tensor(DType::kFloat, {1, 2, 4, 4}, 1)},
                            {"w", random_tensor(DType::kFloat, {2, 2, 3, 3}, 2)},
                            {"m", random_tensor(DType::kFloat, {3, 2}, 3)},
                            {"p", random_tensor(DType::kFloat, {2, 2}, 4)}};
  SessionOptions with_biases;
  with_biases.plan.lowering.without = {"drop_zero_biases"};
  Session expected(model_of_biases(), with_biases), session(model_of_biases());
  const TensorMap wanted = expected.run("predict", inputs);
  for (const auto& [name, tensor] : session.run("predict", inputs)) {
    EXPECT_EQ(relative_error(tensor, wanted.at(name)), 0) << name;
  }
}

}  // namespace
}  // namespace onnx_train::drop_zero_biases_test
