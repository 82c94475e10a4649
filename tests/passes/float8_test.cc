// Operands of 8 bits: what FakeQuantize makes of numbers, and the scales that the step's state chooses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/mse_options.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::float8_test {
namespace {

Tensor fake_quantized(const Tensor& x, float scale, DType to) {
  return run_node("FakeQuantize", {x, Tensor::scalar(scale)}, {{"to", static_cast<int>(to)}}, 1, kDomain)[0].clone();
}

TEST(FakeQuantize, SaturatesAndKeepsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::of<float>({7}, {kInfinity, -kInfinity, NAN, 1e30f, -0.0f, 1e-40f, 464});
  for (const auto& [dtype, largest] : {std::pair(DType::kFloat8E4M3FN, 448.0), {DType::kFloat8E5M2, 57344.0}}) {
    const Tensor y = fake_quantized(x, 2, dtype);
    EXPECT_EQ(y.at(0), 2 * largest);
    EXPECT_EQ(y.at(1), -2 * largest);
    EXPECT_TRUE(std::isnan(y.at(2)));
    EXPECT_EQ(y.at(3), 2 * largest);
    EXPECT_TRUE(y.at(4) == 0 && std::signbit(y.at(4)));
    EXPECT_EQ(y.at(5), 0);
    EXPECT_EQ(y.at(6), 448);  // 232 is nearest to 224: as near as to 240, whose code is odd, or nearer than to 256
  }
}

TEST(FakeQuantize, PassesItsGradientOn) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Value* x = graph.add_input("x", {DType::kFloat, Dims{5}});
  Value* dy = graph.add_input("dy", {DType::kFloat, Dims{5}});
  Builder b(&graph);
  const Var y = call(b, "FakeQuantize", {b.var(x), b.scalar(DType::kFloat, 0.5)},
                     {{"to", static_cast<int>(DType::kFloat8E4M3FN)}});
  graph.add_output(add_gradients(&graph, {y.value()}, {dy}, {x})[0]);
  Session session(std::move(model));
  const Tensor given = random_tensor(DType::kFloat, {5}, 3);
  const Tensor dx = session.run("predict", {{"x", given}, {"dy", given}}).at("grad/x");
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(dx.at(i), given.at(i));
}

// Two products with weights whose sizes are multiples of 16, and one that is not.
Model three_layers() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto weight = [&](const char* name, Shape shape) {
    return b.var(graph.add_initializer(name, random_tensor(DType::kFloat, std::move(shape), 7)));
  };
  Var x = b.var(graph.add_input("x", {DType::kFloat, Dims{"batch", 16}}));
  x = b.op("Relu", {matmul(x, weight("w1", {16, 32}))});
  x = b.op("Relu", {matmul(x, weight("w2", {32, 16}))});
  b.set_name("y");
  graph.add_output(matmul(x, weight("w3", {16, 3})).value());
  infer_types(model.graph.get());
  return model;
}

TEST(DelayedScaling, RemembersTheGreatestMagnitudesOfEachTensor) {
  Model model = three_layers();
  build_training_model(&model, mse_options(Precision::kFloat8));
  const Value* history = find_state(*model.find_entry_point("step"), roles::kMagnitudes);
  ASSERT_TRUE(history);
  const std::string name = history->name();
  EXPECT_EQ(history->type().shape(), (Shape{6, 16}));  // two operands and a gradient for each of the two products
  Session session(std::move(model));
  Tensor x = random_tensor(DType::kFloat, {8, 16}, 5);
  const Tensor target = random_tensor(DType::kFloat, {8, 3}, 6);
  const auto step = [&](float largest) {
    x.set(3, largest);
    session.run("step", {{"x", x}, {"target", target}});
    return states_of(session).at(name).clone();
  };
  const Tensor first = step(5);
  EXPECT_EQ(first.at(0), 5);
  EXPECT_EQ(first.at(1), 16);          // what operands are expected to be below
  EXPECT_EQ(first.at(5 * 16 + 1), 1);  // gradients
  EXPECT_GT(first.at(5 * 16), 0);
  const Tensor second = step(-7);
  EXPECT_EQ(second.at(0), 7);
  EXPECT_EQ(second.at(1), 5);
  EXPECT_EQ(step(std::numeric_limits<float>::infinity()).at(0), 0);
  for (int i = 0; i < 16; ++i) step(2);
  const Tensor forgotten = step(2);
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(forgotten.at(i), 2) << i;
}

TEST(DelayedScaling, LossesFollowFloat32) {
  const auto losses = [](Precision precision) {
    Model model = three_layers();
    build_training_model(&model, mse_options(precision));
    Session session(std::move(model));
    std::vector<double> result;
    const TensorMap batch = {{"x", random_tensor(DType::kFloat, {256, 16}, 5)},
                             {"target", random_tensor(DType::kFloat, {256, 3}, 6)},
                             {"learning_rate", Tensor::scalar(0.01f)}};
    for (int i = 0; i < 20; ++i) result.push_back(session.run("step", batch).at("loss").at(0));
    return result;
  };
  const std::vector<double> exact = losses(Precision::kFloat32), narrow = losses(Precision::kFloat8);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NE(narrow[i], exact[i]) << i;
    // An operand is off by 2^-4 of itself at most, and a loss is a mean over many of them, whose errors are
    // independent.
    EXPECT_NEAR(narrow[i], exact[i], 0.05 * exact[i]) << i;
  }
  EXPECT_LT(narrow.back(), 0.7 * narrow.front());
}

}  // namespace
}  // namespace onnx_train::float8_test
