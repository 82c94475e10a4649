// What the rules emit, as text; and what they give where a formula is delicate.
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/model.h"
#include "runtime/session/session.h"
#include "tests/support/golden.h"

namespace onnx_train::gradients_test {
namespace {

// Adds the gradients of output y, given the input dy, with respect to x and all float initializers.
bool differentiate(Model& model) {
  Graph* g = model.graph.get();
  std::vector<Value*> values = {g->find("x")};
  for (Value* v : g->initializers()) {
    if (is_float(v->dtype())) values.push_back(v);
  }
  for (Value* gradient : add_gradients(g, {g->find("y")}, {g->find("dy")}, values)) g->add_output(gradient);
  return true;
}

TEST(Gradients, OfALinearLayerAreOneProductEach) {
  expect_golden("linear_gradient", {{"differentiate", differentiate}});
}

TEST(Gradients, OfAConvolutionAreOneFunctionEach) {
  expect_golden("convolution_gradient", {{"differentiate", differentiate}});
}

TEST(Gradients, OfMovedElementsGoTheWayBack) { expect_golden("movement_gradient", {{"differentiate", differentiate}}); }

TEST(Gradients, OfElementwiseOperatorsReadAsTheirFormulas) {
  expect_golden("elementwise_gradient", {{"differentiate", differentiate}});
}

TEST(Gradients, OfASplitWhoseOutputsAreUnusedOrLeftOutAreZeroThere) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[2,5] x) => () {}");
  Graph* g = model.graph.get();
  Node* split = g->add_node("Split", {g->find("x")}, {"a", "", "c"});  // sizes 2, 2, 1
  split->set_attr("axis", 1);
  split->set_attr("num_outputs", 3);
  infer_types(split);
  Builder b(g);
  const Var loss = sum_all(b.var(split->output(2)) * 3.0);
  g->add_output(add_gradients(g, loss.value(), {g->find("x")})[0]);
  Session session(std::move(model));
  const Tensor dx = session.run("predict", {{"x", Tensor(DType::kFloat, {2, 5})}}).at("grad/x");
  EXPECT_EQ(dx.shape(), (Shape{2, 5}));
  for (int64_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx.at(i), i % 5 == 4 ? 3 : 0);
}

// The gradients of y = op(x0, x1, ...) with respect to all operands, for dy = 1.
std::vector<std::vector<float>> gradients_of(const char* op, const std::vector<std::vector<float>>& operands) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> g () => () {}");
  Graph* g = model.graph.get();
  Builder b(g);
  std::vector<Var> xs;
  std::vector<Value*> values;
  TensorMap given;
  for (const auto& operand : operands) {
    const Shape shape = operand.size() == 1 ? Shape{} : Shape{static_cast<int64_t>(operand.size())};
    const std::string name = "x" + std::to_string(values.size());
    given[name] = Tensor::of<float>(shape, operand);
    values.push_back(g->add_input(name, {DType::kFloat, Dims(shape.begin(), shape.end())}));
    xs.push_back(b.var(values.back()));
  }
  const Var y = b.op(op, xs);
  const auto gradients = add_gradients(g, {y.value()}, {ones_like(y).value()}, values);
  for (Value* gradient : gradients) g->add_output(gradient);
  Session session(std::move(model));
  const TensorMap& outputs = session.run("predict", given);
  std::vector<std::vector<float>> results;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& gradient = outputs.at("grad/x" + std::to_string(i));
    results.emplace_back(gradient.data<float>(), gradient.data<float>() + gradient.size());
  }
  return results;
}

using Rows = std::vector<std::vector<float>>;

TEST(Gradients, AtKinksAreThoseOfPyTorch) {
  EXPECT_EQ(gradients_of("Relu", {{-1, 0, 1}}), (Rows{{0, 0, 1}}));
  EXPECT_EQ(gradients_of("Abs", {{-1, 0, 1}}), (Rows{{-1, 0, 1}}));
  EXPECT_EQ(gradients_of("LeakyRelu", {{-1, 0, 1}}), (Rows{{0.01f, 0.01f, 1}}));
  EXPECT_EQ(gradients_of("PRelu", {{-2, 0, 3}, {0.5, 0.5, 0.5}}), (Rows{{0.5, 0.5, 1}, {-2, 0, 0}}));
  EXPECT_EQ(gradients_of("Clip", {{-2, -1, 0, 1, 2}, {-1}, {1}}), (Rows{{0, 1, 1, 1, 0}, {1}, {1}}));
}

TEST(Gradients, OfTiesAddUpToOne) {
  EXPECT_EQ(gradients_of("Max", {{1, 1, 3}, {1, 2, 3}, {0, 2, 3}}),
            (Rows{{0.5, 0, 1.0f / 3}, {0.5, 0.5, 1.0f / 3}, {0, 0.5, 1.0f / 3}}));
  EXPECT_EQ(gradients_of("Min", {{1, 1}, {1, 2}}), (Rows{{0.5, 1}, {0.5, 0}}));
}

TEST(Gradients, OfPowersOfZeroAndOfNegativeNumbersAreNumbers) {
  const Rows rows = gradients_of("Pow", {{0, 0, 0, -2}, {0, 1, 2, 3}});
  EXPECT_EQ(rows[0], (std::vector<float>{0, 1, 0, 12}));
  EXPECT_EQ(std::vector<float>(rows[1].begin(), rows[1].begin() + 3), (std::vector<float>{0, 0, 0}));
  EXPECT_TRUE(std::isnan(rows[1][3]));  // a power of a negative number has no derivative by its exponent
}

}  // namespace
}  // namespace onnx_train::gradients_test
