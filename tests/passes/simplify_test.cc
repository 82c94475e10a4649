#include <gtest/gtest.h>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "tests/support/empty_model.h"
#include "tests/support/reference_work.h"

namespace onnx_train::simplify_test {
namespace {

// As the gates of a recurrent layer do, whose order is not that of the framework.
TEST(Simplify, TheGradientOfAWeightThatSlicesShareOutIsOneConcat) {
  Model model = from_text(R"(
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x) => (float[N,3] y)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}> {
      a = Slice (w, zero, one, zero)
      b = Slice (w, one, three, zero)
      c = Concat <axis = 0> (b, a)
      y = Gemm <transB = 1> (x, c)
    })");
  build_training_model(&model, {});
  const EntryPoint& step = *model.find_entry_point("step");
  ASSERT_EQ(step.gradients.size(), 1u);
  EXPECT_EQ(step.gradients[0].gradient->name(), "grad/w");
  EXPECT_TRUE(step.gradients[0].gradient->producer()->is("Concat"));
  for (const Node* node : step.algorithm->nodes()) EXPECT_FALSE(node->is("SliceGrad", kDomain)) << node->label();
}

TEST(Simplify, StatesAreNoConstants) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }");
  EntryPoint& step = model.add_entry_point("step");
  Graph& g = *step.algorithm;
  Builder b(&g);
  Value* count = g.add_initializer("state/step", Tensor::scalar<int64_t>(7));
  Value* other = g.add_initializer("state/other", Tensor::scalar<int64_t>(7));
  const Var one = b.constant(Tensor::scalar<int64_t>(1));
  const Var next = b.var(count) + one;
  const Var unrelated = b.var(other) + one;
  const Var twice = next + next;
  g.add_output(twice.value());
  g.add_output(unrelated.value());
  step.update_bindings = {{count, twice.value()}, {other, unrelated.value()}};
  EXPECT_FALSE(simplify(model));
  EXPECT_EQ(g.num_nodes(), 3u);
  // Nor once a file has been read again, and in a flattened entry point.
  const Model flat = flatten(clone(model), "step");
  for (const Node* node : flat.graph->nodes()) EXPECT_FALSE(node->output()->elements()) << node->label();
}

TEST(Simplify, AlgorithmsReuseTheInferenceGraph) {
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[N] x) => (float[N] y) {"
      " h = Exp(x) y = Relu(h) unused = Sin(h) }");
  infer_types(model.graph.get());
  EntryPoint& step = model.add_entry_point("step");
  Builder b(step.algorithm.get());
  b.set_name("train/h");
  const Var h = exp(b.var(model.graph->find("x")));
  const Var loss = sum_all(sin(h));
  step.algorithm->add_output(loss.value());
  EXPECT_TRUE(simplify(model));
  EXPECT_EQ(step.algorithm->find("train/h"), nullptr);
  EXPECT_EQ(step.algorithm->num_nodes(), 1u) << to_text(model);
  EXPECT_NE(model.graph->find("unused"), nullptr);  // the algorithm needs it now
  EXPECT_FALSE(simplify(model));
}

TEST(Simplify, CastsToTheSameTypeGo) {
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[N] x, float[2] like, double[2] other) => (float[N] y, "
      "double[N] z) {"
      " same = CastLike(x, like) y = Relu(same) z = CastLike(x, other) }");
  infer_types(model.graph.get());
  EXPECT_TRUE(simplify(model));
  EXPECT_EQ(model.graph->find("same"), nullptr);
  EXPECT_TRUE(model.graph->find("z")->producer()->is("CastLike"));
}

TEST(Simplify, OutputsKeepTheirNames) {
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[N] x) => (float[N] a, float[N] b, float[N] c) {"
      " a = Exp(x) b = Exp(x) c = Identity(x) }");
  simplify(model);
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Simplify, TakesLinearTime) {
  Model model = empty_model();
  Builder b(model.graph.get());
  Var x = b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N"}}));
  for (int i = 0; i < 40000; ++i) x = b.op("Relu", {b.op("Identity", {x})});
  model.graph->add_output(x.value());
  const std::clock_t start = std::clock();
  simplify(model);
  EXPECT_EQ(model.graph->num_nodes(), 40000u);
  EXPECT_LT(milliseconds_since(start), 3 * second_of_this_machine());  // where time is square it takes minutes
}

}  // namespace
}  // namespace onnx_train::simplify_test
