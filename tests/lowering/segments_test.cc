// Shapes that depend on data, on the device under test: the plan is cut, and the segment planned for what is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/device.h"
#include "kernels/subgraph_calls.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"

namespace onnx_train::segments_test {
namespace {

using testing::HasSubstr;

Model model_of(const std::string& graph) { return from_text(R"(<ir_version: 10, opset_import: ["" : 21]> )" + graph); }

// loss = the mean of x w where t > 0, and the gradient of w
constexpr const char* kSelected = R"(g (double[6,2] x, double[2] w, double[6] t) => (double loss)
  <double zero = {0}> {
    c = Greater(t, zero) y = MatMul(x, w) s = Compress(y, c) loss = ReduceMean<keepdims = 0>(s) })";

size_t count_segments(const Plan& plan) {
  size_t count = 0;
  for (const PlanStep& step : plan.steps()) count += step.node->is(kCallSegment, kDomain);
  return count;
}

TEST(Segments, ArePlannedForEachNumberOfElementsFound) {
  Session session(model_of(kSelected));
  const Tensor x = Tensor::of<double>({6, 2}, {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0}),
               w = Tensor::of<double>({2}, {2, 7});
  const auto loss = [&](const std::vector<double>& t) {
    return session.run("predict", {{"x", x}, {"w", w}, {"t", Tensor::of<double>({6}, t)}}).at("loss").at(0);
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(loss({1, -1, 1, -1, -1, -1}), 4);
    EXPECT_EQ(loss({-1, -1, -1, -1, 1, 1}), 11);
    EXPECT_EQ(loss({1, 1, 1, 1, 1, 1}), 7);
    EXPECT_EQ(loss({-1, -1, -1, 1, -1, -1}), 8);
  }
}

// What is known before and after the cut is not in the segment.
TEST(Segments, HoldTheNodesBetweenTheFirstAndTheLastUnknownShape) {
  Session session(model_of(kSelected));
  const std::map<std::string, Shape> shapes = {{"x", {6, 2}}, {"w", {2}}, {"t", {6}}};
  const Plan& plan = session.plan("predict", shapes);
  EXPECT_EQ(count_segments(plan), 1u);
  EXPECT_THAT(plan_table(plan, 0), HasSubstr("the plan is cut"));
  bool multiplies = false;
  for (const PlanStep& step : plan.steps()) multiplies = multiplies || step.node->op() == "MatMul";
  EXPECT_TRUE(multiplies);
}

TEST(Segments, AreNotInPlansWhoseShapesAreKnown) {
  Session session(model_of(R"(g (double[6,2] x) => (double loss) <int64[1] k = {3}> {
    v, i = TopK<axis = 0>(x, k) loss = ReduceMean<keepdims = 0>(v) })"));
  EXPECT_EQ(count_segments(session.plan("predict", {{"x", {6, 2}}})), 0u);
}

// A size that is found in a segment cuts that one again.
TEST(Segments, AreCutThemselves) {
  Session session(model_of(R"(g (double[8] x) => (double count) <double zero = {0}, double one = {1}> {
    a = Greater(x, zero) b = Compress(x, a) c = Greater(b, one) d = Compress(b, c) n = Size(d)
    count = Cast<to = 11>(n) })"));
  const auto count = [&](const std::vector<double>& x) {
    return session.run("predict", {{"x", Tensor::of<double>({8}, x)}}).at("count").at(0);
  };
  EXPECT_EQ(count({0, 1, 2, 3, -4, -5, 6, 0}), 3);
  EXPECT_EQ(count({0, 1, -2, -3, -4, -5, 1, 0}), 0);
  EXPECT_EQ(count({0, 0, 0, 0, 0, 0, 0, 0}), 0);
}

TEST(Segments, FindDistinctElements) {
  Session session(model_of(R"(g (int64[6] x) => (int64[6] back, int64 most) <int64[1] one = {1}> {
    y, first, inverse, counts = Unique<sorted = 0>(x)
    back = Gather(y, inverse) v, i = TopK(counts, one) f = Gather(first, i) most = ReduceMax<keepdims = 0>(f) })"));
  const TensorMap found = session.run("predict", {{"x", Tensor::of<int64_t>({6}, {4, -2, 7, -2, 7, 7})}});
  EXPECT_EQ(found.at("back").to_ints(), (std::vector<int64_t>{4, -2, 7, -2, 7, 7}));
  EXPECT_EQ(found.at("most").at(0), 2);
}

// Boxes of two classes: the second overlaps the first, the third does not.
TEST(Segments, FindBoxesThatDoNotOverlap) {
  Session session(model_of(R"(g (float[1,3,4] boxes, float[1,2,3] scores, float least) => (int64[3] sum, int64 count)
    <int64 most = {2}, float overlap = {0.5}> {
    y = NonMaxSuppression(boxes, scores, most, overlap, least)
    first = Constant<value_ints = [0]>() last = Constant<value_ints = [1]>() one = Constant<value_int = 1>()
    shape = Shape<end = 1>(y) ones = ConstantOfShape<value = int64[1] {1}>(shape)
    count = ReduceSum<keepdims = 0>(ones) n = Squeeze(shape) end = Add(n, one) numbers = Range(one, end, one)
    column = Unsqueeze(numbers, last) weighted = Mul(y, column) sum = ReduceSum<keepdims = 0>(weighted, first) })"));
  const Tensor boxes = Tensor::of<float>({1, 3, 4}, {0, 0, 1, 1, 0, 0.1f, 1, 1.1f, 2, 2, 3, 3}),
               scores = Tensor::of<float>({1, 2, 3}, {0.9f, 0.8f, 0.3f, 0.1f, 0.7f, 0.6f});
  const auto found = [&](float least) {
    const TensorMap& outputs =
        session.run("predict", {{"boxes", boxes}, {"scores", scores}, {"least", Tensor::scalar<float>(least)}});
    std::vector<int64_t> result = outputs.at("sum").to_ints();
    result.insert(result.begin(), static_cast<int64_t>(outputs.at("count").at(0)));
    return result;
  };
  using testing::ElementsAre;
  EXPECT_THAT(found(0), ElementsAre(4, 0, 3 + 4, 2 * 2 + 3 * 1 + 4 * 2));  // (0, 0), (0, 2); (1, 1), (1, 2)
  EXPECT_THAT(found(0.65f), ElementsAre(2, 0, 2, 2 * 1));                  // (0, 0); (1, 1)
  EXPECT_THAT(found(1), ElementsAre(0, 0, 0, 0));
}

TEST(Segments, FindDistinctSlices) {
  for (const std::string sorted : {"0", "1"}) {
    Session session(
        model_of("g (int64[2,5] x) => (int64[2,5] back, int64 most, int64 sum) { y, first, inverse, counts = "
                 "Unique<axis = 1, sorted = " +
                 sorted + R"(>(x)
      back = Gather<axis = 1>(y, inverse) most = ReduceMax<keepdims = 0>(counts)
      top = Constant<value_ints = [0]>() head = Gather<axis = 1>(y, top) sum = ReduceSum<keepdims = 0>(head) })"));
    const Tensor x = Tensor::of<int64_t>({2, 5}, {4, 1, 4, 1, 1, 7, 9, 7, 2, 9});
    const TensorMap found = session.run("predict", {{"x", x}});
    EXPECT_EQ(found.at("back").to_ints(), x.to_ints());
    EXPECT_EQ(found.at("most").at(0), 2);
    EXPECT_EQ(found.at("sum").at(0), sorted == "1" ? 3 : 11);  // (1, 2) or (4, 7)
  }
}

// The slope of `loss` along all elements of x, by its gradient and by differences.
void expect_gradient(const std::string& graph, const std::vector<double>& x) {
  Model model = model_of(graph);
  infer_types(model.graph.get());
  Graph* g = model.graph.get();
  Value* const gradient = add_gradients(g, g->find("loss"), {g->find("x")})[0];
  ASSERT_TRUE(gradient);
  g->add_output(gradient);
  Session session(std::move(model));
  const Shape shape = {static_cast<int64_t>(x.size())};
  constexpr double kStep = 1e-5;
  const Tensor found = session.run("predict", {{"x", Tensor::of<double>(shape, x)}}).at("grad/x").clone();
  for (size_t i = 0; i < x.size(); ++i) {
    const auto loss_at = [&](double step) {
      std::vector<double> moved = x;
      moved[i] += step;
      return session.run("predict", {{"x", Tensor::of<double>(shape, moved)}}).at("loss").at(0);
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(found.at(static_cast<int64_t>(i)), difference, 1e-6 * std::max(1.0, std::abs(difference))) << i;
  }
}

TEST(Segments, HaveGradients) {
  const std::vector<double> x = {0.5, -1, 2, 0.25, -3, 1.5};
  expect_gradient(R"(g (double[6] x) => (double loss) <double zero = {0}> {
    c = Greater(x, zero) y = Compress(x, c) z = Mul(y, y) loss = ReduceMean<keepdims = 0>(z) })",
                  x);
  expect_gradient(R"(g (double[6] x) => (double loss) <double zero = {0}> {
    c = Less(x, zero) i = NonZero(c) j = Transpose(i) y = GatherND(x, j) z = Mul(y, y)
    loss = ReduceMean<keepdims = 0>(z) })",
                  x);
  for (const std::string sorted : {"0", "1"}) {
    expect_gradient("g (double[6] x) => (double loss) { y, first, back, n = Unique<sorted = " + sorted + R"(>(x)
      z = Mul(y, y) c = Cast<to = 11>(first) w = Mul(z, c) d = Gather(w, back) e = Mul(d, x)
      loss = ReduceMean<keepdims = 0>(e) })",
                    x);
  }
}

TEST(Segments, DistinctSlicesHaveGradients) {
  for (const std::string axis : {"0", "1"}) {
    expect_gradient(
        "g (double[6] x) => (double loss) <int64[2] shape = {3, 2}> { r = Reshape(x, shape) "
        "y, first, back, n = Unique<axis = " +
            axis + R"(>(r)
      z = Mul(y, y) d = Gather<axis = )" +
            axis + R"(>(z, back) e = Mul(d, r) loss = ReduceMean<keepdims = 0>(e) })",
        {0.5, -1, 2, 0.25, -3, 1.5});
  }
}

TEST(Segments, SaySizesThatDoNotFit) {
  Session session(model_of(R"(g (double[6] x, int64[2] shape) => (double loss) {
    y = Reshape(x, shape) s = ReduceMax<keepdims = 0>(y) loss = Neg(s) })"));
  const auto run = [&](int64_t a, int64_t b) {
    return session.run("predict", {{"x", Tensor::full(DType::kDouble, {6}, 2)}, {"shape", Tensor::ints({a, b})}})
        .at("loss")
        .at(0);
  };
  EXPECT_EQ(run(2, 3), -2);
  EXPECT_THAT(error_of([&] { run(4, 3); }), HasSubstr("'shape' = [4, 3]"));
  EXPECT_EQ(run(3, 2), -2);
}

// What decides the shapes of outputs is found first: those of the second output depend on the first.
TEST(Segments, ReachOutputsOfPredict) {
  Session session(model_of(R"(g (double[6] x) => (double[K] y, double total, int64[L] few) <double zero = {0}> {
    c = Greater(x, zero) y = Compress(x, c) total = ReduceSum<keepdims = 0>(x) d = Greater(y, total)
    places = NonZero(d) shape = Constant<value_ints = [-1]>() few = Reshape(places, shape) })"));
  const auto run = [&](const std::vector<double>& x) {
    TensorMap outputs;
    for (const auto& [name, tensor] : session.run("predict", {{"x", Tensor::of<double>({6}, x)}}))
      outputs[name] = tensor.clone();
    return outputs;
  };
  for (int round = 0; round < 2; ++round) {
    TensorMap found = run({1, -2, 3, -4, 5, -1});
    EXPECT_EQ(found.size(), 3u);
    EXPECT_EQ(found.at("total").at(0), 2);
    EXPECT_EQ(found.at("y").shape(), Shape{3});
    EXPECT_EQ(found.at("y").at(2), 5);
    EXPECT_EQ(found.at("few").to_ints(), (std::vector<int64_t>{1, 2}));
    found = run({-1, -2, -3, -4, -5, 6});
    EXPECT_EQ(found.at("y").shape(), Shape{1});
    EXPECT_EQ(found.at("few").to_ints(), (std::vector<int64_t>{0}));
    found = run({-1, -2, -3, -4, -5, -6});
    EXPECT_EQ(found.at("y").shape(), Shape{0});
  }
  EXPECT_TRUE(session.is_sized_by_data("y"));
  EXPECT_TRUE(session.is_sized_by_data("few"));
  EXPECT_FALSE(session.is_sized_by_data("total"));
}

// A run in two parts is one run.
TEST(Segments, DoNotReachAnOutputOfARunInTwoParts) {
  Session session(model_of(R"(g (double[6] x) => (double[K] y) <double zero = {0}> {
    c = Greater(x, zero) y = Compress(x, c) })"));
  EXPECT_THAT(error_of([&] {
                session.start("predict", {{"x", Tensor::full(DType::kDouble, {6}, 1)}});
              }),
              HasSubstr("output 'y' (double[?]) depends on data"));
}

// An index out of range inside fails that run alone.
TEST(Segments, AFaultInsideNamesItsOperator) {
  Session session(model_of(R"(g (double[4] table, int64[3] x, int64[1] k) => (double loss) <int64[1] zero = {0}> {
    i = Slice(x, zero, k) y = Gather(table, i) loss = ReduceSum<keepdims = 0>(y) })"));
  const auto run = [&](int64_t k) {
    return session
        .run("predict", {{"table", Tensor::of<double>({4}, {1, 2, 3, 4})},
                         {"x", Tensor::ints({3, 0, 9})},
                         {"k", Tensor::ints({k})}})
        .at("loss")
        .at(0);
  };
  EXPECT_EQ(run(2), 5);
  EXPECT_THAT(error_of([&] { run(3); }), HasSubstr("(Gather): index 9 is outside"));
  EXPECT_EQ(run(1), 4);
}

}  // namespace
}  // namespace onnx_train::segments_test
