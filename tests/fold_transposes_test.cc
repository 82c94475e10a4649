#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/lowering/lowering.h"
#include "runtime/session.h"
#include "tests/golden.h"
#include "tests/run_node.h"

namespace onnx_train {
namespace {

TEST(FoldTransposes, LeavesNoneInAttention) {
  expect_golden("fold_transposes", {{"fold_transposes", fold_transposes}, {"remove_dead_nodes", remove_dead_nodes}});
}

TEST(FoldTransposes, ChangesNoNumbers) {
  std::ifstream file(ONNX_TRAIN_SOURCE_DIR "/tests/golden/fold_transposes.txt");
  std::stringstream text;
  text << file.rdbuf();
  const std::string before = text.str().substr(0, text.str().find("---"));
  TensorMap inputs;
  for (const char* name : {"q", "k", "v"}) inputs[name] = random_tensor(DType::kFloat, {2, 4, 3, 5}, *name);
  inputs["w"] = random_tensor(DType::kFloat, {5, 5});
  SessionOptions without;
  without.plan.lowering = false;
  Session lowered(from_text(before)), plain(from_text(before), without);
  const Tensor expected = plain.run("predict", inputs).at("y");
  EXPECT_LT(relative_error(lowered.run("predict", inputs).at("y"), expected), 1e-6);
}

TEST(FoldTransposes, SwapsTheFlagsOfGemm) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[3,4] a, float[5,3] b) => (float[4,5] y) {
      b_t = Transpose (b)
      y = Gemm <transA = 1> (a, b_t)
    })");
  ASSERT_TRUE(fold_transposes(model));
  const Node* gemm = model.graph->find("y")->producer();
  EXPECT_EQ(gemm->attr("transB", 0), 1);
  EXPECT_EQ(gemm->input(1)->name(), "b");
}

TEST(FoldTransposes, KeepsTransposesThatWouldTearRowsApart) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,5,2] a, float[5,3] b) => (float[2,4,3] y) {
      t = Transpose <perm = [2, 0, 1]> (a)
      y = MatMul (t, b)
    })");
  EXPECT_FALSE(fold_transposes(model));
}

}  // namespace
}  // namespace onnx_train
