#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <tuple>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/run_node.h"

namespace onnx_train::fold_transposes_test {
namespace {

// Runs the model with and without lowering on the same inputs.
void expect_same_numbers(const std::string& text, const TensorMap& inputs) {
  SessionOptions without;
  without.plan.lowering.on = false;
  Session lowered(from_text(text)), plain(from_text(text), without);
  const Tensor expected = plain.run("predict", inputs).at("y");
  EXPECT_LT(relative_error(lowered.run("predict", inputs).at("y"), expected), 1e-6);
}

TEST(FoldTransposes, ChangesNoNumbers) {
  std::ifstream file(source_folder() / "tests/golden/fold_transposes.txt");
  std::stringstream text;
  text << file.rdbuf();
  const std::string before = text.str().substr(0, text.str().find("---"));
  TensorMap inputs;
  for (const char* name : {"q", "k", "v"}) inputs[name] = random_tensor(DType::kFloat, {2, 4, 3, 5}, *name);
  inputs["w"] = random_tensor(DType::kFloat, {5, 5});
  expect_same_numbers(before, inputs);
}

TEST(FoldTransposes, MakesAViewOfWhatMovesNothing) {
  const auto text = [](const char* shape, const char* permutation, const char* result) {
    return concat(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[)", shape, "] x) => (float[", result,
                  "] y) {\n  t = Transpose <perm = [", permutation, "]> (x)\n  y = Exp (t)\n}");
  };
  const auto count = [](const std::string& model_text) {
    Model model = from_text(model_text);
    infer_types(model.graph.get());
    fold_transposes(model);
    const std::vector<Node*> nodes = model.graph->nodes();
    return std::count_if(nodes.begin(), nodes.end(), [](const Node* node) { return node->is("Transpose"); });
  };
  EXPECT_EQ(count(text("4,1,3,5", "0,2,1,3", "4,3,1,5")), 0);
  EXPECT_EQ(count(text("4,1,3,1", "1,0,3,2", "1,4,1,3")), 0);
  EXPECT_EQ(count(text("1,1", "1,0", "1,1")), 0);
  EXPECT_EQ(count(text("4,0,1", "0,2,1", "4,1,0")), 0);
  EXPECT_EQ(count(text("4,1,3,5", "2,1,0,3", "3,1,4,5")), 1);
  EXPECT_EQ(count(text("4,n,3,5", "0,2,1,3", "4,3,n,5")), 1);
  expect_same_numbers(text("4,1,3,5", "0,2,1,3", "4,3,1,5"), {{"x", random_tensor(DType::kFloat, {4, 1, 3, 5})}});
  expect_same_numbers(text("4,n,3,5", "0,2,1,3", "4,3,n,5"), {{"x", random_tensor(DType::kFloat, {4, 1, 3, 5})}});
}

// A product takes the transpose of its rounded result if its rows stay together.
TEST(FoldTransposes, PassesTheRoundingOfAProduct) {
  const auto text = [](const char* permutation, const char* result) {
    return concat(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[2,3,4,5] a, float[2,3,5,6] b) => (float[)",
                  result, "] y) {\n  p = MatMul (a, b)\n  n = Cast <to = 16> (p)\n  w = Cast <to = 1> (n)\n",
                  "  y = Transpose <perm = [", permutation, "]> (w)\n}");
  };
  const TensorMap inputs = {{"a", random_tensor(DType::kFloat, {2, 3, 4, 5}, 1)},
                            {"b", random_tensor(DType::kFloat, {2, 3, 5, 6}, 2)}};
  for (const auto& [permutation, result, folds] :
       {std::tuple("0,2,1,3", "2,4,3,6", true), {"1,0,3,2", "3,2,6,4", true}, {"2,3,0,1", "4,6,2,3", false}}) {
    Model model = from_text(text(permutation, result));
    infer_types(model.graph.get());
    fold_transposes(model);
    const Node* last = model.graph->find("y")->producer();
    EXPECT_EQ(last->op(), folds ? "Cast" : "Transpose") << permutation;
    expect_same_numbers(text(permutation, result), inputs);
  }
}

TEST(FoldTransposes, PassesAChainOfRoundingsAtOnce) {
  std::string text = R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[2,3,4,5] a, float[2,3,5,6] b) => (float[2,4,3,6] y) { v0 = MatMul (a, b) )";
  constexpr int kPairs = 20000;
  for (int i = 0; i < kPairs; ++i) {
    text += concat("n", i, " = Cast <to = 16> (v", i, ") v", i + 1, " = Cast <to = 1> (n", i, ") ");
  }
  text += concat("y = Transpose <perm = [0,2,1,3]> (v", kPairs, ") }");
  Model model = from_text(text);
  infer_types(model.graph.get());
  EXPECT_TRUE(fold_transposes(model));
  EXPECT_EQ(count_nodes(model, "Cast"), 2 * kPairs);
  EXPECT_TRUE(model.graph->first()->is("TransposedMatMul", kDomain));
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

TEST(FoldTransposes, SwapsTheOperandsOfAProductThatIsTransposed) {
  const Tensor a = random_tensor(DType::kFloat, {2, 3, 4, 5}, 1), b = random_tensor(DType::kFloat, {2, 3, 5, 6}, 2);
  expect_same_numbers(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,3,4,5] a, float[2,3,5,6] b) => (float[2,6,3,4] y) {
      p = MatMul (a, b)
      y = Transpose <perm = [0, 3, 1, 2]> (p)
    })",
                      {{"a", a}, {"b", b}});
  const std::string gemm = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,5] a, float[6,4] b) => (float[6,5] y) {
      p = Gemm <transA = 1, transB = 1, alpha = 0.5> (a, b)
      y = Transpose <perm = [1, 0]> (p)
    })";
  expect_same_numbers(gemm,
                      {{"a", random_tensor(DType::kFloat, {4, 5}, 1)}, {"b", random_tensor(DType::kFloat, {6, 4}, 2)}});
  Model model = from_text(gemm);
  ASSERT_TRUE(fold_transposes(model));
  EXPECT_TRUE(model.graph->find("y")->producer()->is("Gemm"));
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
}  // namespace onnx_train::fold_transposes_test
