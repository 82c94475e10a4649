// Gradients travel while others are computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "onnx_passes/distribution/data_parallel.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/passes.h"
#include "runtime/distribution/simulated_ranks.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/local_ranks.h"
#include "tests/support/reference_work.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::overlap_test {
namespace {

constexpr int kLayers = 16;
constexpr int64_t kWidth = 544;                                       // too much for a bucket
constexpr double kBytes = kLayers * kWidth * kWidth * sizeof(float);  // of the gradients

// Equal layers, so that the gradient that nothing hides is a sixteenth of all.
Model make_layers() {
  Model model = empty_model();
  Builder b(model.graph.get());
  Var x = b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N", kWidth}}));
  for (int i = 0; i < kLayers; ++i) {
    const Tensor w = random_tensor(DType::kFloat, {kWidth, kWidth}, static_cast<unsigned>(i));
    x = b.op("Tanh", {matmul(x, b.var(model.graph->add_initializer(concat("w", i), w)))});
  }
  b.set_name("y");
  model.graph->add_output(b.op("Identity", {x}).value());
  BuildOptions build;
  build.loss = "mse(y, t)";
  build.optimizer = "sgd(lr=0.01)";
  build.accumulate = true;
  build_training_model(&model, build);
  return model;
}

TensorMap make_batch(int64_t samples = 64) {
  return {{"x", random_tensor(DType::kFloat, {samples, kWidth}, 1)},
          {"t", random_tensor(DType::kFloat, {samples, kWidth}, 2)}};
}

int count(const Graph& graph, const char* op) {
  int found = 0;
  for (const Node* node = graph.first(); node; node = node->next()) found += node->is(op, kDomain);
  return found;
}

TEST(Overlap, WhatIsUnderWayIsBounded) {
  Model flat = flatten(make_layers(), "accumulate");
  distribute_over_ranks(&flat, 2, false);
  sum_early(&flat);
  constexpr int64_t kLayerBytes = kWidth * kWidth * sizeof(float);
  overlap_collectives(&flat, false, 3 * kLayerBytes);
  order_collectives(&flat);
  int under_way = 0, most = 0;
  const Value* before = nullptr;
  for (const Node* node = flat.graph->first(); node; node = node->next()) {
    if (!is_collective(*node)) continue;
    const int after = operator_of(*node).after;
    EXPECT_EQ(node->num_inputs() > after ? node->input(after) : nullptr, before) << node->label();
    before = node->output();
    const std::vector<Use>& uses = node->output()->uses();
    const bool starts = std::any_of(uses.begin(), uses.end(),
                                    [](const Use& use) { return use.index == 0 && use.node->is("Await", kDomain); });
    if (node->is("Await", kDomain)) --under_way;
    if (starts) most = std::max(most, ++under_way);
  }
  EXPECT_EQ(under_way, 0);
  EXPECT_EQ(most, 3);
  EXPECT_GE(count(*flat.graph, "Await"), kLayers - 1);
}

// The least seconds of a step on two ranks.
double seconds_of_step(const std::optional<Network>& network, bool overlap, int64_t samples) {
  double least = 1e9;
  std::mutex mutex;
  LocalRanks(2, network).run([&](Collectives* c) {
    SessionOptions options;
    options.topology.collectives = c;
    options.threads = 1;
    options.topology.overlap = overlap;
    Session session(make_layers(), options);
    const TensorMap batch = make_batch(samples);
    for (int i = 0; i < 3; ++i) {
      const auto start = std::chrono::steady_clock::now();
      session.run("accumulate", batch);
      const std::lock_guard lock(mutex);
      if (i > 0)
        least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  });
  return least;
}

// Half as long as the computation, the network hides behind it; where it takes far longer, it hides the computation,
// but for the forward pass. What it takes is measured without overlap: a rank also copies and adds.
TEST(Scaling, AStepOfTwoRanksTakesTheLargerOfComputingAndTheNetwork) {
  for (const auto& [share, samples] : {std::pair(0.5, 256), std::pair(20.0, 64)}) {
    double ratio = 1e9;
    for (int attempt = 0; attempt < 12 && ratio > 1.1; ++attempt) {
      const double compute = seconds_of_step({}, true, samples);
      // Two exchanges, in each of which a rank sends half of a gradient.
      const Network network{.latency = 0, .bandwidth = kBytes / (share * compute)};
      const double exchanging = seconds_of_step(network, false, samples) - compute,
                   step = seconds_of_step(network, true, samples);
      ratio = std::min(ratio, step / std::max(compute, exchanging) / slowness_of_two_threads());
      std::printf("computing %.1f ms, exchanging %.1f ms, together %.1f ms\n", 1e3 * compute, 1e3 * exchanging,
                  1e3 * step);
    }
    EXPECT_LE(ratio, 1.1) << share;
  }
}

TEST(Overlap, AFailureIsThrownWhereTheResultIsAwaited) {
  // Rank 1 leaves before its first step.
  std::string error;
  LocalRanks ranks(2);
  EXPECT_THROW(ranks.run([&](Collectives* c) {
    SessionOptions options;
    options.topology.collectives = c;
    options.threads = 1;
    Session session(make_layers(), options);
    if (c->rank() == 1) fail("no more");
    try {
      session.run("accumulate", make_batch());
    } catch (const Error& failure) {
      error = failure.what();
      throw;
    }
  }),
               Error);
  EXPECT_THAT(error, testing::HasSubstr("rank 1 has ended: no more"));
}

// The simulated rank waits as long as a rank with such a network.
TEST(Overlap, SimulatedRanksWaitAsLong) {
  const Network network{.latency = 0, .bandwidth = kBytes / 1.0};
  SimulatedRanks simulated(2, network);
  SessionOptions options;
  options.topology.collectives = &simulated;
  options.threads = 1;
  for (const bool overlap : {false, true}) {
    options.topology.overlap = overlap;
    Session session(make_layers(), options);
    session.run("accumulate", make_batch());
    simulated.restart();
    session.run("accumulate", make_batch());
    EXPECT_NEAR(simulated.network_seconds(), 1, 0.01);
    const double hidden = simulated.network_seconds() - simulated.stalled_seconds();
    const double most = std::min(simulated.compute_seconds(), simulated.network_seconds());
    // All that comes after the first gradient.
    EXPECT_GE(hidden, overlap ? 0.3 * most : -0.01);
    EXPECT_LE(hidden, overlap ? most : 0.01);
  }
}

}  // namespace
}  // namespace onnx_train::overlap_test
