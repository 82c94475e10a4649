// Gradients of If and Scan against central differences in float64, on the device under test: unrolled, called step by
// step (on devices that use host memory), with both branches computed (on others).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/device.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/builder.h"
#include "runtime/data/random.h"
#include "runtime/session.h"
#include "tests/support/error_of.h"

namespace onnx_train {
namespace {

using testing::HasSubstr;

std::string graph_of(const std::string& text) { return R"(<ir_version: 10, opset_import: ["" : 21]> )" + text; }

// s' = tanh(x + s w), y = s s', with s forwards and backwards.
std::string scan_text(int steps, const std::string& attributes = "", const std::string& x = "") {
  const std::string t = std::to_string(steps);
  return graph_of("g (double[2,3] s, double[3,3] w, double" + (x.empty() ? "[" + t + ",2,3]" : x) +
                  " x) => (double loss) { last, ys = Scan<num_scan_inputs = 1" + attributes +
                  R"(, body = b (double[2,3] before, double[2,3] now) => (double[2,3] next, double[2,3] y) {
                  p = MatMul(before, w) a = Add(p, now) next = Tanh(a) y = Mul(before, next) }>(s, x)
                  q = ReduceSum<keepdims = 0>(ys) r = Mul(last, last) u = ReduceMean<keepdims = 0>(r) loss = Add(q, u) })");
}

TensorMap drawn(const Model& model, uint64_t seed = 1) {
  SplitMix64 random(seed);
  TensorMap values;
  for (const Value* input : model.graph->inputs()) {
    Tensor tensor(input->dtype(), input->type().shape());
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, random.uniform(-1, 1));
    values[input->name()] = tensor;
  }
  return values;
}

// The gradients of `loss` agree with differences along a random direction of all inputs.
void expect_gradients(const std::string& text, const TensorMap& given = {}) {
  Model model = from_text(text);
  infer_types(model.graph.get());
  Graph* g = model.graph.get();
  TensorMap at = given.empty() ? drawn(model) : given;
  const TensorMap direction = drawn(model, 2);
  const std::vector<Value*> inputs = g->inputs();
  const auto gradients = add_gradients(g, g->find("loss"), inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(gradients[i]) << inputs[i]->name();
    g->add_output(gradients[i]);
  }
  Session session(std::move(model));
  double slope = 0;
  const TensorMap found = session.run("predict", at);
  for (const auto& [name, along] : direction) {
    for (int64_t i = 0; i < along.size(); ++i) slope += found.at("grad/" + name).at(i) * along.at(i);
  }
  constexpr double kStep = 1e-5;
  const auto loss_at = [&](double step) {
    TensorMap moved = at;
    for (auto& [name, tensor] : moved) {
      tensor = tensor.clone();
      for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, tensor.at(i) + step * direction.at(name).at(i));
    }
    return session.run("predict", moved).at("loss").at(0);
  };
  const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
  EXPECT_NEAR(slope, difference, 1e-6 * std::max(1.0, std::abs(difference)));
}

TEST(ControlFlow, AScanHasTheGradientOfItsSteps) {
  expect_gradients(scan_text(1));
  expect_gradients(scan_text(4));
  expect_gradients(scan_text(4, ", scan_input_directions = [1], scan_output_directions = [1]"));
  expect_gradients(scan_text(5, ", scan_input_axes = [1], scan_output_axes = [2]", "[2,5,3]"));
}

// More steps than a plan of the CPU unrolls.
TEST(ControlFlow, ALongScanHasTheGradientOfItsSteps) {
  expect_gradients(scan_text(300));
  expect_gradients(scan_text(300,
                             ", scan_input_axes = [1], scan_output_axes = [1], scan_input_directions = [1], "
                             "scan_output_directions = [1]",
                             "[2,300,3]"));
}

// The condition depends on the data, in each of 3 or 300 steps.
TEST(ControlFlow, ABranchHasTheGradientOfWhatItTakes) {
  const std::string branch = graph_of(R"(g (double[2,3] x, double[2,3] w) => (double loss) <double zero = {0}> {
    sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, zero)
    y = If(c)<then_branch = t () => (double[2,3] a) { p = Mul(x, w) a = Tanh(p) },
              else_branch = e () => (double[2,3] b) { q = Mul(w, w) b = Sub(x, q) }>
    loss = ReduceSum<keepdims = 0>(y) })");
  for (const double x : {0.5, -0.5}) {
    TensorMap at = drawn(from_text(branch));
    at["x"] = Tensor::full(DType::kDouble, {2, 3}, x);
    expect_gradients(branch, at);
  }
  for (const std::string steps : {"3", "300"}) {
    expect_gradients(graph_of("g (double[2,3] s, double[2,3] w, double[" + steps + R"(,2,3] x) => (double loss)
    <double zero = {0}> { last, ys = Scan<num_scan_inputs = 1,
      body = b (double[2,3] before, double[2,3] now) => (double[2,3] next, double[2,3] y) {
        sum = ReduceSum<keepdims = 0>(now) c = Greater(sum, zero)
        next = If(c)<then_branch = t () => (double[2,3] a) { p = Mul(before, w) a = Tanh(p) },
                     else_branch = e () => (double[2,3] d) { q = Mul(w, now) d = Add(before, q) }>
        y = Mul(next, now) }>(s, x)
      loss = ReduceMean<keepdims = 0>(ys) })"));
  }
}

TEST(ControlFlow, AGradientHasAGradient) {
  Model model = from_text(scan_text(3));
  infer_types(model.graph.get());
  Graph* g = model.graph.get();
  const TensorMap at = drawn(model), direction = drawn(model, 2);
  Value* const w = g->find("w");
  Value* const first = add_gradients(g, g->find("loss"), {w})[0];
  Builder b(g);
  b.set_name("norm");
  Value* norm = sum_all(b.var(first) * b.var(first)).value();
  Value* const second = add_gradients(g, norm, {w})[0];
  g->rename(norm, "norm_of_gradient");
  g->rename(second, "second");
  g->add_output(norm);
  g->add_output(second);
  Session session(std::move(model));
  const Tensor found = session.run("predict", at).at("second");
  double slope = 0;
  for (int64_t i = 0; i < found.size(); ++i) slope += found.at(i) * direction.at("w").at(i);
  constexpr double kStep = 1e-5;
  const auto norm_at = [&](double step) {
    TensorMap moved = at;
    moved["w"] = at.at("w").clone();
    for (int64_t i = 0; i < moved["w"].size(); ++i)
      moved["w"].set(i, at.at("w").at(i) + step * direction.at("w").at(i));
    return session.run("predict", moved).at("norm_of_gradient").at(0);
  };
  EXPECT_NEAR(slope, (norm_at(kStep) - norm_at(-kStep)) / (2 * kStep), 1e-6 * std::max(1.0, std::abs(slope)));
}

TEST(ControlFlow, NoStepsGiveTheStatesAsTheyWere) {
  Model model = from_text(graph_of(R"(g (double[2] s, double[0,2] x) => (double[2] last, double[0,2] ys) {
    last, ys = Scan<num_scan_inputs = 1, body = b (double[2] before, double[2] now) => (double[2] next, double[2] y) {
      next = Add(before, now) y = Identity(next) }>(s, x) })"));
  Session session(std::move(model));
  const TensorMap found =
      session.run("predict", {{"s", Tensor::of<double>({2}, {3, 4})}, {"x", Tensor(DType::kDouble, {0, 2})}});
  EXPECT_EQ(found.at("last").at(1), 4);
  EXPECT_EQ(found.at("ys").shape(), (Shape{0, 2}));
}

// An index out of range in a step that runs names the node inside and the step.
TEST(ControlFlow, AFaultInsideNamesItsNode) {
  if (!default_device().uses_host_memory()) GTEST_SKIP() << "a device without host memory unrolls the Scan";
  Model model = from_text(graph_of(R"(g (float[4] table, int64[1000] x) => (float[1000] ys) {
    ys = Scan<num_scan_inputs = 1, body = b (int64 now) => (float y) {
      y = Gather(table, now) }>(x) })"));
  model.graph->first()->subgraph("body")->first()->mutable_shell();
  Session session(std::move(model));
  Tensor x(DType::kInt64, {1000});
  x.set(700, 9);
  EXPECT_THAT(error_of([&] {
                session.run("predict", {{"table", Tensor(DType::kFloat, {4})}, {"x", x}});
              }),
              HasSubstr("in step 700: node 'y' (Gather)"));
}

TEST(ControlFlow, BranchesOfSeveralShapesAreRefused) {
  Model model = from_text(graph_of(R"(g (float[2,1] x) => (float y) <float zero = {0}> {
    sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, zero)
    z = If(c)<then_branch = t () => (float[2] a) { a = Squeeze(x) }, else_branch = e () => (float[2,1] b) { b = Neg(x) }>
    y = ReduceSum<keepdims = 0>(z) })"));
  EXPECT_THAT(error_of([&] { Session(std::move(model)).plan("predict", {}); }),
              HasSubstr("its branches give 'z' as float[2] and as float[2,1]; a plan needs one shape"));
}

}  // namespace
}  // namespace onnx_train
