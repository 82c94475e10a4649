// Loops of many steps: a plan does not grow with their number, and memory is that of the states.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/reference_work.h"

namespace onnx_train::loop_plan_test {
namespace {

constexpr int64_t kRows = 2, kWidth = 3;

// s' = tanh(s w + b + x_t) as often as `count` says; the loss is the mean of all states.
Session session_of(const char* inputs, const char* count) {
  onnx::ModelProto proto;
  to_proto(from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
      g ()",
                            inputs, R"() => (float loss)
        <float[3, 3] w = {0.5, 0.25, -0.125, 0.75, -0.5, 0.0625, 0.375, 0.625, -0.25}, float[3] b = {0.125, 0.25, 0.5},
         float[2, 3] start = {0.5, -0.5, 1, -1, 0.25, 2}, bool always = {1}> {
        )",
                            count, R"(
        last, y = Loop<body = body (int64 i, bool go, float[2, 3] s) => (bool on, float[2, 3] next, float[2, 3] out) {
          on = Identity(go)
          x_t = Gather<axis = 0>(x, i)
          p = MatMul(s, w)
          q = Add(p, b)
          r = Add(q, x_t)
          next = Tanh(r)
          out = Identity(next)
        }>(steps, always, start)
        loss = ReduceMean<keepdims = 0>(y)
      })")),
           &proto);
  Model model = import_model(std::move(proto));
  BuildOptions options;
  options.loss = "loss";
  options.optimizer = "sgd";
  options.train = {"w", "b"};
  build_training_model(&model, options);
  return Session(std::move(model));
}

constexpr const char* kKnownInputs = "float[T, 2, 3] x";
constexpr const char* kKnownCount = "shape = Shape<start = 0, end = 1>(x) steps = Squeeze(shape)";

TEST(LoopPlan, TenThousandStepsOfKnownLengthArePlannedInASecond) {
  Session session = session_of(kKnownInputs, kKnownCount);
  const std::clock_t start = std::clock();
  const Plan& plan = session.plan("step", {{"x", {10'000, kRows, kWidth}}});
  const double planning = milliseconds_since(start);
  std::printf("%zu steps of the plan, %.0f ms\n", plan.steps().size(), planning);
  EXPECT_LT(plan.steps().size(), 100u);
  EXPECT_LT(planning, second_of_this_machine());
}

TEST(LoopPlan, MemoryIsLinearInTheNumberOfSteps) {
  Session session = session_of(kKnownInputs, kKnownCount);
  const auto bytes = [&](int64_t steps) {
    return static_cast<double>(session.plan("step", {{"x", {steps, kRows, kWidth}}}).arena_bytes());
  };
  const double small = bytes(1'000), middle = bytes(2'000), large = bytes(4'000);
  constexpr double kState = 1'000 * kRows * kWidth * sizeof(float);
  EXPECT_GE(middle - small, kState);  // of the states before each step, which the way back reads
  EXPECT_LE(middle - small, 8 * kState);
  EXPECT_NEAR(large - middle, 2 * (middle - small), 0.05 * kState);
}

// The first run plans what the number of steps that it finds asks for; the second one has this plan.
TEST(LoopPlan, TenThousandStepsOfALengthThatDataGiveArePlannedInASecond) {
  Session session = session_of("float[T, 2, 3] x, int64[N] lengths", "steps = ReduceMax<keepdims = 0>(lengths)");
  Tensor lengths(DType::kInt64, {2});
  lengths.data<int64_t>()[0] = 17;
  lengths.data<int64_t>()[1] = 10'000;
  const TensorMap batch = {{"x", Tensor::full(DType::kFloat, {10'000, kRows, kWidth}, 0.125)}, {"lengths", lengths}};
  std::clock_t start = std::clock();
  session.run("step", batch);
  const double first = milliseconds_since(start);
  start = std::clock();
  session.run("step", batch);
  const double second = milliseconds_since(start);
  std::printf("first run %.0f ms, second run %.0f ms\n", first, second);
  EXPECT_LT(first - second, second_of_this_machine());
}

}  // namespace
}  // namespace onnx_train::loop_plan_test
