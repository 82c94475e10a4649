// Gradients of If and Scan against central differences in float64, on the device under test: unrolled, called step by
// step (on devices that use host memory), with both branches computed (on others).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/device.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/data/random.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/reference_work.h"

namespace onnx_train::control_flow_test {
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

// Where branches give results of different shapes, the plan is cut: the one that is taken says the shape.
TEST(ControlFlow, BranchesOfSeveralShapesHaveGradients) {
  const std::string text = graph_of(R"(g (double[3,2] x) => (double loss) <double zero = {0}> {
    sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, zero)
    z = If(c)<then_branch = t () => (double[1,2] a) { axis = Constant<value_ints = [0]>() a = ReduceMax(x, axis) },
              else_branch = e () => (double[3,2] b) { b = Mul(x, x) }>
    y = Mul(z, z) p = Mul(y, x) loss = ReduceMean<keepdims = 0>(p) })");
  for (const double shift : {1.0, -1.0}) {
    Tensor x = Tensor::of<double>({3, 2}, {0.3, -0.7, 0.5, 0.2, -0.4, 0.1});
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) + shift);
    expect_gradients(text, {{"x", x}});
  }
}

std::string ranks_text(const std::string& rest) {
  return graph_of(R"(g (float[2,1] x) => (float y) <float zero = {0}, int64[1] two = {2}> {
    sum = ReduceSum<keepdims = 0>(x) c = Greater(sum, zero)
    z = If(c)<then_branch = t () => (float[2] a) { a = Squeeze(x) }, else_branch = e () => (float[2,1] b) { b = Neg(x) }>
    )" + rest + " }");
}

TEST(ControlFlow, BranchesMayHaveResultsOfSeveralRanks) {
  Session session(from_text(ranks_text("r = Reshape(z, two) y = ReduceSum<keepdims = 0>(r)")));
  const auto y = [&](float a, float b) {
    return session.run("predict", {{"x", Tensor::of<float>({2, 1}, {a, b})}}).at("y").at(0);
  };
  EXPECT_EQ(y(1, 2), 3);
  EXPECT_EQ(y(-1, -3), 4);
}

// Of a result whose rank is not known, inference tells nothing: `run` finds the branch first, a run in two parts does
// not.
TEST(ControlFlow, WhatFollowsFromSeveralRanksIsKnownWithTheBranch) {
  Session session(from_text(ranks_text("y = ReduceSum<keepdims = 0>(z)")));
  const auto inputs = [](float a, float b) { return TensorMap{{"x", Tensor::of<float>({2, 1}, {a, b})}}; };
  EXPECT_EQ(session.run("predict", inputs(1, 2)).at("y").at(0), 3);
  EXPECT_EQ(session.run("predict", inputs(-1, -3)).at("y").at(0), 4);
  EXPECT_THAT(
      error_of([&] { session.start("predict", inputs(1, 2)); }),
      HasSubstr("its branches give 'z' as float[2] and as float[2,1]; a plan needs one shape: make it the same"));
}

// ---- Loops, as they are imported

Model imported(const std::string& text) {
  onnx::ModelProto proto;
  to_proto(from_text(text), &proto);
  return import_model(std::move(proto));
}

// What the model computes for these inputs, and the gradients of `loss` of the inputs that are floats.
TensorMap with_gradients(const std::string& text, const TensorMap& at, Device* device = nullptr) {
  Model model = imported(text);
  Graph* g = model.graph.get();
  std::vector<Value*> inputs;
  for (Value* input : g->inputs()) {
    if (is_float(input->dtype())) inputs.push_back(input);
  }
  for (Value* gradient : add_gradients(g, g->find("loss"), inputs)) {
    if (gradient) g->add_output(gradient);
  }
  SessionOptions options;
  options.device = device;
  Session session(std::move(model), options);
  return session.run("predict", at);
}

void expect_equal(const TensorMap& a, const TensorMap& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    ASSERT_EQ(tensor.shape(), b.at(name).shape()) << name;
    for (int64_t i = 0; i < tensor.size(); ++i)
      ASSERT_NEAR(tensor.at(i), b.at(name).at(i), tolerance) << name << ' ' << i;
  }
}

// The step of an LSTM from h, c and `now` to hn, cn, in standard operators.
constexpr const char* kCell = R"(
  a = MatMul(now, wx) p = MatMul(h, wh) q = Add(a, p) z = Add(q, bias)
  zi, zo, zf, zc = Split<axis = 1, num_outputs = 4>(z)
  i = Sigmoid(zi) o = Sigmoid(zo) f = Sigmoid(zf) u = Tanh(zc)
  fc = Mul(f, c) iu = Mul(i, u) cn = Add(fc, iu) tc = Tanh(cn) hn = Mul(o, tc) )";

// The LSTM over x[T,2,3], T = steps, with 4 units. `call` makes h_last, c_last and ys[T,2,4].
std::string lstm_text(int steps, const std::string& call, const std::string& inputs = "") {
  return graph_of("g (double[2,4] h0, double[2,4] c0, double[3,16] wx, double[4,16] wh, double[16] bias, double[" +
                  std::to_string(steps) + ",2,3] x, double[" + std::to_string(steps) + ",2,4] r" + inputs +
                  R"() => (double loss) <bool yes = {1}, int64[1] zero = {0}> {)" + call +
                  R"( e = Mul(ys, r) s1 = ReduceSum<keepdims = 0>(e) e2 = Mul(h_last, c_last)
                  s2 = ReduceSum<keepdims = 0>(e2) loss = Add(s1, s2) })");
}

std::string lstm_loop(const std::string& count, const std::string& condition) {
  return "h_last, c_last, ys = Loop<body = b (int64 k, bool go, double[2,4] h, double[2,4] c) => "
         "(bool on, double[2,4] hn, double[2,4] cn, double[2,4] y) { now = Gather<axis = 0>(x, k) " +
         std::string(kCell) + condition + " y = Identity(hn) }>(" + count + ", yes, h0, c0)";
}

// What a Scan, a Loop whose length is known, found or ended by what the data say, and steps written out compute.
TEST(ControlFlow, AnLstmHasOneGradientInAllItsForms) {
  constexpr int kSteps = 6;
  const std::string scan =
      "h_last, c_last, ys = Scan<num_scan_inputs = 1, body = b (double[2,4] h, double[2,4] c, double[2,3] now) => "
      "(double[2,4] hn, double[2,4] cn, double[2,4] y) {" +
      std::string(kCell) + " y = Identity(hn) }>(h0, c0, x)";
  const std::string known =
      "sizes = Shape<start = 0, end = 1>(x) count = Squeeze(sizes)" + lstm_loop("count", "on = Identity(go)");
  const std::string given = lstm_loop("steps", "on = Identity(go)");
  const std::string ended = lstm_loop("",
                                      "sum = Sub(steps, k) left = Cast<to = 11>(sum) limit = CastLike(edge, left) "
                                      "on = Greater(left, limit)");
  std::string unrolled;
  const auto step_names = [](std::string text, int step) {
    const std::string n = std::to_string(step), before = step == 0 ? "" : std::to_string(step - 1);
    std::string out, word;
    const auto flush = [&] {
      const bool shared = word == "wx" || word == "wh" || word == "bias" || word.empty() || !std::islower(word[0]) ||
                          word == "axis" || word == "num_outputs";
      out += shared        ? word
             : word == "h" ? (step == 0 ? "h0" : "hn_" + before)
             : word == "c" ? (step == 0 ? "c0" : "cn_" + before)
                           : word + "_" + n;
      word.clear();
    };
    for (const char ch : text) {
      if (std::isalnum(ch) || ch == '_') {
        word += ch;
      } else {
        flush();
        out += ch;
      }
    }
    flush();
    return out;
  };
  std::string stack = "ys = Concat<axis = 0>(";
  for (int i = 0; i < kSteps; ++i) {
    const std::string n = std::to_string(i);
    unrolled += "at_" + n + " = Constant<value_int = " + n + ">() now_" + n + " = Gather<axis = 0>(x, at_" + n + ")" +
                step_names(kCell, i) + " y_" + n + " = Unsqueeze(hn_" + n + ", zero) ";
    stack += (i ? ", y_" : "y_") + n;
  }
  const std::string last = std::to_string(kSteps - 1);
  unrolled += stack + ") h_last = Identity(hn_" + last + ") c_last = Identity(cn_" + last + ")";

  TensorMap at = drawn(from_text(lstm_text(kSteps, scan)));
  const TensorMap expected = with_gradients(lstm_text(kSteps, unrolled), at);
  ASSERT_EQ(expected.size(), 8u);
  expect_equal(with_gradients(lstm_text(kSteps, scan), at), expected, 1e-12);
  expect_equal(with_gradients(lstm_text(kSteps, known), at), expected, 1e-12);
  at["steps"] = Tensor::scalar<int64_t>(kSteps);
  expect_equal(with_gradients(lstm_text(kSteps, given, ", int64 steps"), at), expected, 1e-12);
  std::string until = lstm_text(kSteps, ended, ", int64 steps");
  until.insert(until.find("<bool yes") + 1, "double edge = {1}, ");
  expect_equal(with_gradients(until, at), expected, 1e-12);
}

// s' = s tanh(w), as long as the sum of s is above the bound, which is 1 in a session that runs several lengths.
constexpr const char* kUntil = R"(g (double[3] s, double[3] w, double bound) => (double loss) <bool yes = {1}> {
  last, each = Loop<body = b (int64 i, bool go, double[3] before) => (bool on, double[3] next, double[3] y) {
      t = Tanh(w) next = Mul(before, t) sum = ReduceSum<keepdims = 0>(next) on = Greater(sum, bound)
      y = Mul(next, next) }>(, yes, s)
  a = ReduceSum<keepdims = 0>(each) b2 = ReduceSum<keepdims = 0>(last) loss = Add(a, b2) })";

TEST(ControlFlow, ALoopTakesAsManyStepsAsItsConditionSays) {
  const auto expected = [](double bound, double* dw) {  // of each of three equal elements
    const double w = 1.5, t = std::tanh(w);
    double s = 2, ds = 0, loss = 0, grad = 0;
    do {
      ds = ds * t + s * (1 - t * t);
      s *= t;
      loss += 3 * s * s;
      grad += 2 * s * ds;
    } while (3 * s > bound);
    *dw = grad + ds;
    return loss + 3 * s;
  };
  for (const double bound : {100.0, 4.0, 1.0, 0.01}) {
    double dw = 0;
    const double loss = expected(bound, &dw);
    const TensorMap found = with_gradients(graph_of(kUntil), {{"s", Tensor::full(DType::kDouble, {3}, 2)},
                                                              {"w", Tensor::full(DType::kDouble, {3}, 1.5)},
                                                              {"bound", Tensor::scalar(bound)}});
    EXPECT_NEAR(found.at("loss").at(0), loss, 1e-12 * loss);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(found.at("grad/w").at(i), dw, 1e-12 * std::abs(dw)) << bound;
  }
}

// As exporters write a loop over a range: the stack has a shape that is known.
TEST(ControlFlow, StepsThatFollowFromConstantsAreCounted) {
  Model model = imported(graph_of(R"(g (double[2] x) => (double[T,2] y)
    <bool yes = {1}, int64 start = {3}, int64 one = {1}, int64 end = {7}> {
    last, y = Loop<body = b (int64 i, bool go, int64 k) => (bool on, int64 next, double[2] now) {
        like = CastLike(one, k) next = Add(k, like) on = Less(next, end) f = Cast<to = 11>(k) now = Mul(x, f)
      }>(, yes, start) })"));
  Session session(std::move(model));
  const Tensor y = session.run("predict", {{"x", Tensor::of<double>({2}, {1, 2})}}).at("y");
  EXPECT_EQ(y.shape(), (Shape{4, 2}));
  EXPECT_EQ(y.at(0), 3);
  EXPECT_EQ(y.at(7), 12);
}

// The states before each step are stacked as long as the loop is, and planning takes as long as for one step.
TEST(ControlFlow, ALongLoopOfUnknownLengthIsPlannedAtOnce) {
  if (!default_device().uses_host_memory()) GTEST_SKIP() << "a device without host memory unrolls the Scan";
  const std::string text = graph_of(R"(g (double[3] s, double[3] w, int64 count) => (double loss) <bool yes = {1}> {
    last, each = Loop<body = b (int64 i, bool go, double[3] before) => (bool on, double[3] next, double[3] y) {
        on = Identity(go) p = Mul(before, w) next = Tanh(p) y = Mul(next, next) }>(count, yes, s)
    loss = ReduceMean<keepdims = 0>(each) })");
  TensorMap at = {{"s", Tensor::full(DType::kDouble, {3}, 1)}, {"w", Tensor::full(DType::kDouble, {3}, 1.01)}};
  at["count"] = Tensor::scalar<int64_t>(10'000);
  const std::clock_t start = std::clock();
  const TensorMap found = with_gradients(text, at);
  EXPECT_LT(milliseconds_since(start), 5 * second_of_this_machine());  // planning and running
  double s = 1, ds = 0, loss = 0, grad = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double next = std::tanh(1.01 * s);
    ds = (1 - next * next) * (s + 1.01 * ds);
    s = next;
    loss += s * s / 10'000;
    grad += 2 * s * ds / 30'000;
  }
  EXPECT_NEAR(found.at("loss").at(0), loss, 1e-9 * loss);
  EXPECT_NEAR(found.at("grad/w").at(0), grad, 1e-9 * std::abs(grad));
}

TEST(ControlFlow, ALoopThatNoConditionEndsIsRefused) {
  Model model = imported(graph_of(R"(g (double[3] x) => (double[K] y) <bool yes = {1}> {
    y = Loop<body = b (int64 i, bool go, double[K] before) => (bool on, double[K2] next) {
        next = Concat<axis = 0>(before, before) sum = ReduceSum<keepdims = 0>(next) sum1 = Neg(sum)
        on = Greater(sum, sum1) }>(, yes, x) })"));
  EXPECT_THAT(error_of([&] {
                Session(std::move(model)).plan("predict", {{"x", {3}}});
              }),
              HasSubstr("a Loop runs here if what it carries keeps its shape"));
}

// Each step appends a tensor to a list, which is stacked or joined after the loop.
TEST(ControlFlow, ASequenceThatALoopFillsIsAStack) {
  for (const std::string read : {"ConcatFromSequence<axis = 1, new_axis = 1>", "ConcatFromSequence<axis = 1>"}) {
    const std::string text = graph_of(R"(g (double[2,3] s, double[2,3] w) => (double loss)
      <bool yes = {1}, int64 count = {3}, int64 second = {1}> {
      none = SequenceEmpty<dtype = 11>()
      last, all = Loop<body = b (int64 i, bool go, double[2,3] before, seq(double[2,3]) list) =>
                              (bool on, double[2,3] next, seq(double[2,3]) more) {
          on = Identity(go) p = Mul(before, w) next = Tanh(p) more = SequenceInsert(list, next) }>(count, yes, s, none)
      y = )" + read + R"((all) c = CumSum(y, second) d = Mul(c, c) a = ReduceSum<keepdims = 0>(d)
      z = SequenceAt(all, second) e = ReduceSum<keepdims = 0>(z) loss = Add(a, e) })");
    const TensorMap at = drawn(from_text(text));
    const bool joins = read.find("new_axis") == std::string::npos;
    const std::string expected = graph_of(R"(g (double[2,3] s, double[2,3] w) => (double loss)
      <int64[1] one = {1}, int64 second = {1}> {
      p0 = Mul(s, w) a0 = Tanh(p0) p1 = Mul(a0, w) a1 = Tanh(p1) p2 = Mul(a1, w) a2 = Tanh(p2) )" +
                                          std::string(joins ? "y = Concat<axis = 1>(a0, a1, a2)"
                                                            : "u0 = Unsqueeze(a0, one) u1 = Unsqueeze(a1, one) u2 = "
                                                              "Unsqueeze(a2, one) y = Concat<axis = 1>(u0, u1, u2)") +
                                          R"( c = CumSum(y, second) d = Mul(c, c) a = ReduceSum<keepdims = 0>(d)
      e = ReduceSum<keepdims = 0>(a1) loss = Add(a, e) })");
    expect_equal(with_gradients(text, at), with_gradients(expected, at), 1e-12);
  }
}

TEST(ControlFlow, AMapOfASequenceIsWrittenOut) {
  const std::string text = graph_of(R"(g (double[2,3] x, double[3] w) => (double loss) <int64[2] sizes = {1, 2}> {
    parts = SplitToSequence<axis = 1>(x, sizes)
    mapped = SequenceMap<body = b (double[2,M] part) => (double[2,M] y) { a = Tanh(part) y = Mul(a, a) }>(parts)
    y = ConcatFromSequence<axis = 1>(mapped) z = Mul(y, w) loss = ReduceSum<keepdims = 0>(z) })");
  const std::string expected = graph_of(R"(g (double[2,3] x, double[3] w) => (double loss) {
    a = Tanh(x) y = Mul(a, a) z = Mul(y, w) loss = ReduceSum<keepdims = 0>(z) })");
  const TensorMap at = drawn(from_text(expected));
  expect_equal(with_gradients(text, at), with_gradients(expected, at), 1e-12);
}

// A size that data decide leaves the others as they are, which the branches of an If and what a Loop carries need.
TEST(Inference, ASliceAndAPadKeepTheSizesOfOtherAxes) {
  const auto type_of = [](const std::string& nodes) {
    const Model model =
        from_text(graph_of("g (double[n, t, 3] x, int64[1] k, int64[6] pads) => (double y) "
                           "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-2}> { " +
                           nodes + " }"));
    infer_types(model.graph.get());
    return to_string(model.graph->find("y")->type());
  };
  EXPECT_EQ(type_of("y = Slice(x, zero, k, one)"), "double[n,?,3]");
  EXPECT_EQ(type_of("y = Slice(x, k, k, last)"), "double[n,?,3]");
  EXPECT_EQ(type_of("y = Slice(x, zero, k)"), "double[?,t,3]");
  EXPECT_EQ(type_of("s = Shape(x) half = Div(s, s) e = Slice(half, one, k) y = Slice(x, zero, k, one)"),
            "double[n,?,3]");
  EXPECT_EQ(type_of("y = Slice(x, zero, k, k)"), "double[?,?,?]");
  EXPECT_EQ(type_of("two = Concat<axis = 0>(k, k) y = Pad(x, two, , one)"), "double[n,?,3]");
  EXPECT_EQ(type_of("j = Neg(k) p = Concat<axis = 0>(zero, j, one, zero, zero, one) y = Pad(x, p)"), "double[n,?,5]");
  EXPECT_EQ(type_of("y = Pad(x, pads)"), "double[?,?,?]");
}

}  // namespace
}  // namespace onnx_train::control_flow_test
