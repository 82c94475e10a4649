#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::update_early_test {
namespace {

constexpr int64_t kWidth = 320, kLayers = 4, kClasses = 10;
constexpr size_t kGradient = kWidth * kWidth * sizeof(float);

Model make_model(double clip_norm = 0, const std::string& optimizer = "adamw") {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto weight = [&](const std::string& name, Shape shape, unsigned seed) {
    return b.var(graph.add_initializer(name, random_tensor(DType::kFloat, std::move(shape), seed)));
  };
  Var h = b.var(graph.add_input("x", {DType::kFloat, Dims{"N", kWidth}}));
  for (unsigned i = 0; i < kLayers; ++i) {
    h = tanh(matmul(h, weight(concat("w", i), {kWidth, kWidth}, i)) * 0.1 + weight(concat("b", i), {kWidth}, i + 9));
  }
  b.set_name("y");
  graph.add_output(matmul(h, weight("head", {kWidth, kClasses}, 5)).value());
  BuildOptions options;
  options.loss = "cross_entropy";
  options.optimizer = optimizer;
  options.clip_norm = clip_norm;
  build_training_model(&model, options);
  return model;
}

TensorMap make_batch() {
  Tensor labels(DType::kInt64, {6});
  for (int64_t i = 0; i < 6; ++i) labels.data<int64_t>()[i] = i % kClasses;
  return {{"x", random_tensor(DType::kFloat, {6, kWidth}, 8)}, {"labels", labels}};
}

SessionOptions without(const std::string& pass) {
  SessionOptions options;
  options.plan.lowering.without = {pass};
  return options;
}

TEST(UpdateEarly, LargeGradientsAreNotAliveTogether) {
  Session early(make_model()), late(make_model(), without("update_early"));
  const TensorMap batch = make_batch();
  const Plan &a = early.plan("step", shapes_of(batch)), &b = late.plan("step", shapes_of(batch));
  EXPECT_EQ(count(a, "AdamW"), kLayers - 1);  // that of the first layer stands with those of the biases
  EXPECT_EQ(count(a, "Updates"), 1);
  EXPECT_EQ(count(b, "AdamW"), 0);
  EXPECT_LE(a.arena_bytes() + (kLayers - 2) * kGradient, b.arena_bytes());
  for (const StatePort& port : a.states()) EXPECT_TRUE(port.in_place) << port.name;
}

TEST(UpdateEarly, SameBitsAndTheSameNorm) {
  for (const char* optimizer : {"adamw", "sgd", "sgd(momentum=0.9)"}) {
    Session early(make_model(0, optimizer)), late(make_model(0, optimizer), without("update_early"));
    const TensorMap batch = make_batch();
    for (int i = 0; i < 3; ++i) {
      const double norm = early.run("step", batch).at("grad_norm").at(0);
      const double expected = late.run("step", batch).at("grad_norm").at(0);
      EXPECT_NEAR(norm, expected, 1e-6 * expected);
    }
    expect_equal(states_of(early), states_of(late));
  }
}

TEST(UpdateEarly, ClippingWaitsForTheNorm) {
  const TensorMap batch = make_batch();
  TensorMap clipped = batch;
  clipped["clip_norm"] = Tensor::scalar(0.01f);
  Session built(make_model(0.01)), asked(make_model()), unclipped(make_model());
  EXPECT_EQ(count(built.plan("step", shapes_of(batch)), "AdamW"), 0);
  EXPECT_EQ(count(asked.plan("step", shapes_of(clipped)), "AdamW"), 0);
  for (int i = 0; i < 2; ++i) {
    built.run("step", batch);
    asked.run("step", clipped);
    unclipped.run("step", batch);
  }
  expect_equal(states_of(built), states_of(asked));
  const Tensor a = built.state().get("state/w0/exp_avg"), b = unclipped.state().get("state/w0/exp_avg");
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  asked.run("step", batch);  // the same session, not clipped this time: another plan
  EXPECT_EQ(count(asked.plan("step", shapes_of(batch)), "AdamW"), kLayers - 1);
}

TEST(UpdateEarly, AnInfiniteGradientSpoilsItsOwnWeightOnly) {
  Session session(make_model(0, "sgd"));
  TensorMap batch = make_batch();
  batch.at("x").data<float>()[0] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(session.run("step", batch).at("grad_norm").at(0)));
  const Tensor head = session.state().get("head");
  for (int64_t i = 0; i < head.size(); ++i) ASSERT_TRUE(std::isfinite(head.at(i)));
  EXPECT_FALSE(std::isfinite(session.state().get("w0").at(0)));
}

TEST(UpdateEarly, AStepThatFailsLeavesTheState) {
  Session session(make_model());
  const TensorMap batch = make_batch();
  session.run("step", batch);
  const auto before = states_of(session);
  TensorMap wrong = batch;
  wrong["labels"] = Tensor(DType::kInt64, {6});
  wrong["labels"].data<int64_t>()[5] = kClasses;
  EXPECT_THROW(session.run("step", wrong), Error);
  expect_equal(states_of(session), before);
}

}  // namespace
}  // namespace onnx_train::update_early_test
