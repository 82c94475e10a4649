// What a training finds out itself: a loss that fits the data, the largest batch, a learning rate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/loss_guess.h"
#include "runtime/training/rate_search.h"
#include "runtime/training/run_memory.h"
#include "tests/support/async_host_device.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::automatic_test {
namespace {

using testing::HasSubstr;

// y = op(x w), [N, outputs], or divided by its sum over the outputs; without an operator x w is the output.
Model make_linear(int64_t outputs, const char* op = nullptr, bool divides = false) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const Var x = b.var(graph.add_input("x", {DType::kFloat, Dims{"N", 8}}));
  Var y = matmul(x, b.var(graph.add_initializer("w", random_tensor(DType::kFloat, {8, outputs}, 1))));
  graph.rename(y.value(), "scores");
  if (op) {
    y = b.op(op, {y});
    if (divides) y = b.op("LpNormalization", {y}, {{"axis", 1}, {"p", 1}});
    graph.rename(y.value(), "y");
  }
  graph.add_output(y.value());
  return model;
}

std::string guess(const Model& model, const char* name, const Tensor& target) {
  return guess_loss(model, {{"x", Tensor(DType::kFloat, {4, 8})}, {name, target}}, "the data").loss;
}

TEST(LossGuess, FollowsTheTypeAndTheShapeOfTheTarget) {
  const Tensor classes = Tensor::of<int64_t>({4}, {0, 1, 2, 1}), bits = Tensor::of<float>({4, 1}, {0, 1, 1, 0});
  const Tensor numbers = Tensor::of<float>({4}, {0.5, 1, -2, 0}), flags = Tensor::of<int64_t>({4}, {0, 1, 1, 0});
  EXPECT_EQ(guess(make_linear(3), "labels", classes), "cross_entropy");
  EXPECT_EQ(guess(make_linear(3), "digit", classes), "cross_entropy(scores, digit)");
  EXPECT_EQ(guess(make_linear(3, "Softmax"), "labels", classes), "cross_entropy(scores, labels)");
  EXPECT_EQ(guess(make_linear(3, "Softmax", true), "labels", classes), "cross_entropy(scores, labels)");
  EXPECT_EQ(guess(make_linear(3, "Sigmoid", true), "labels", classes), "nll(y, labels, log=true)");
  EXPECT_EQ(guess(make_linear(1), "labels", bits), "bce_with_logits");
  EXPECT_EQ(guess(make_linear(1), "labels", flags), "bce_with_logits");  // one column is no axis of classes
  EXPECT_EQ(guess(make_linear(1, "Sigmoid"), "labels", bits), "bce_with_logits(scores, labels)");
  EXPECT_EQ(guess(make_linear(1), "labels", numbers), "mse");
  EXPECT_EQ(guess(make_linear(1), "price", numbers), "mse(scores, price)");
}

TEST(LossGuess, RowsWithASingleOneAreClasses) {
  const Tensor rows = Tensor::of<float>({4, 3}, {0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0});
  const Tensor several = Tensor::of<int64_t>({4, 3}, {0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0});
  EXPECT_EQ(guess(make_linear(3), "labels", rows), "cross_entropy(probabilities=true)");
  EXPECT_EQ(guess(make_linear(3), "digit", rows), "cross_entropy(scores, digit, probabilities=true)");
  EXPECT_EQ(guess(make_linear(3, "Softmax"), "labels", rows), "cross_entropy(scores, labels, probabilities=true)");
  EXPECT_EQ(guess(make_linear(3, "Sigmoid"), "labels", rows), "bce_with_logits(scores, labels)");
  EXPECT_EQ(guess(make_linear(3), "labels", several), "bce_with_logits");
}

TEST(LossGuess, SaysWhatItFoundWhereNothingFits) {
  const auto message = [](const Model& model, const TensorMap& arrays) -> std::string {
    try {
      return guess_loss(model, arrays, "the data").loss;
    } catch (const Error& error) {
      return error.what();
    }
  };
  const Tensor floats = Tensor::of<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_THAT(message(make_linear(3), {{"labels", floats}}), HasSubstr("labels of the data is float[2,2], the model's "
                                                                       "output scores float[N,3]"));
  EXPECT_THAT(message(make_linear(3), {{"a", floats}, {"b", floats}}), HasSubstr("a, b beside the model's inputs"));
  EXPECT_THAT(message(make_linear(3), {{"x", floats}}), HasSubstr("holds nothing to compare"));
}

// A deep network of few weights: the batch decides how much memory it takes.
Model make_deep() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  Var x = b.var(graph.add_input("x", {DType::kFloat, Dims{"N", 16}}));
  for (int i = 0; i < 6; ++i) {
    Tensor w = random_tensor(DType::kFloat, {16, 16}, static_cast<unsigned>(i + 1));
    for (int64_t k = 0; k < w.size(); ++k) w.set(k, 0.3 * w.at(k));
    x = b.op("Tanh", {matmul(x, b.var(graph.add_initializer(concat("w", i), w)))});
  }
  graph.add_output(x.value());
  graph.rename(x.value(), "y");
  BuildOptions options;
  options.loss = "mse";
  build_training_model(&model, options);
  return model;
}

Dataset make_samples(int64_t samples, const Model& model) {
  const Tensor x = random_tensor(DType::kFloat, {samples, 16}, 3);
  return Dataset({{"x", x}, {"labels", x}}, entry_inputs(model, "step"));
}

TEST(BatchSearch, FindsTheLargestBatchWithinOnePartIn64) {
  AsyncHostDevice device;
  SessionOptions options;
  options.device = &device;
  Session session(make_deep(), options);
  const Dataset data = make_samples(100'000, session.model());
  for (const size_t limit : {size_t{300} << 10, size_t{7} << 20, size_t{40} << 20}) {
    const FoundBatch found = find_largest_batch(&session, {data, nullptr, limit});
    EXPECT_EQ(found.bound, "the memory");
    EXPECT_LE(found.plans, 8);
    const auto bytes = [&](int64_t batch) {
      const PlannedMemory plan = session.planned_memory("step", batch_shapes(data, batch));
      return session.state().bytes() + plan.arena + 2 * (plan.constants + plan.slots);
    };
    EXPECT_LE(bytes(found.batch), limit) << found.batch;
    EXPECT_GT(bytes(found.batch + found.batch / 32 + 2), limit) << found.batch;
  }
  EXPECT_EQ(device.held(), 2u);  // the state and the fault word: nothing is allocated to find out
  const Dataset few = make_samples(100, session.model());
  EXPECT_EQ(find_largest_batch(&session, {few, nullptr, size_t{1} << 30}).batch, 100);
  try {
    find_largest_batch(&session, {data, nullptr, 1000});
    ADD_FAILURE() << "1000 bytes suffice";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kMemory);
    EXPECT_THAT(error.what(), HasSubstr("not even one sample fits"));
  }
}

// A test of 100 steps from a thousandth to a thousand times 1e-3, and what it finds.
FoundRate rate_of(const std::function<double(double)>& loss) {
  RangeTest test;
  for (int i = 0; i < 100; ++i) {
    const double rate = 1e-6 * std::pow(10, i / 16.5);
    test.add(rate, loss(rate));
  }
  return test.choose(1e-3);
}

// Of the losses of batches, with a deviation of 1.
std::function<double()> noise(uint32_t seed) {
  return
      [random = std::mt19937(seed), normal = std::normal_distribution<double>()]() mutable { return normal(random); };
}

TEST(RateSearch, TakesTheRateWhereTheLossHasFallenByHalf) {
  const auto falls_at = [](double where) {
    return rate_of([=](double rate) { return 2 - std::tanh(2 * std::log10(rate / where)); });
  };
  for (const double where : {1e-4, 1e-3, 1e-2}) {  // the smoothed loss comes later
    EXPECT_NEAR(std::log10(falls_at(where).rate), std::log10(where) + 0.4, 0.2) << where;
    EXPECT_THAT(falls_at(where).rule, HasSubstr("fallen by half"));
  }
}

TEST(RateSearch, TakesAtMostATenthOfTheRateAtWhichTheLossRises) {
  const FoundRate found =
      rate_of([](double rate) { return rate > 0.02 ? 9 : 2 - std::tanh(2 * std::log10(rate / 1e-2)); });
  EXPECT_NEAR(found.diverged, 0.02, 0.005);
  EXPECT_DOUBLE_EQ(found.rate, found.diverged / 10);
  EXPECT_THAT(found.rule, HasSubstr("a tenth"));
}

// As networks with batch norm do: each spike decays, and the decay is no fall.
TEST(RateSearch, ARecoveryFromASpikeIsNoFall) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const FoundRate found = rate_of([next = noise(seed), spikes = 0](double rate) mutable {
      const bool spike = (rate > 0.03 && spikes == 0) || (rate > 0.33 && spikes == 1);
      spikes += spike;
      return spike ? 13 : (rate > 0.03 ? 1.7 : 1.25 - 0.1 * std::min(1.0, rate / 0.01)) + 0.1 * next();
    });
    EXPECT_LE(found.diverged, 0.04) << seed;
    EXPECT_LE(found.rate, found.diverged / 10) << seed;
  }
}

TEST(RateSearch, NoiseAloneFindsTheRateOfTheOptimizer) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const FoundRate found = rate_of([next = noise(seed)](double) mutable { return 1.4 + 0.05 * next(); });
    EXPECT_EQ(found.rate, 1e-3) << seed;
    EXPECT_THAT(found.rule, HasSubstr("no rate lowers the loss clearly"));
  }
  EXPECT_EQ(rate_of([](double) { return 1.0; }).rate, 1e-3);
  // Its rate may be too large, too.
  const FoundRate rises =
      rate_of([next = noise(1)](double rate) mutable { return (rate > 2e-3 ? 900 * rate : 1.4) + 0.05 * next(); });
  EXPECT_LT(rises.rate, 4e-4);
  EXPECT_DOUBLE_EQ(rises.rate, rises.diverged / 10);
}

TEST(RateSearch, AFallIsToldFromTheNoiseOfSmallBatches) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const FoundRate found = rate_of([next = noise(seed)](double rate) mutable {
      return 5 - 1.5 * std::tanh(2 * std::log10(rate / 3e-3)) + next();
    });
    EXPECT_NEAR(std::log10(found.rate), -2.1, 0.5) << seed;
    EXPECT_THAT(found.rule, HasSubstr("fallen by half"));
  }
}

TEST(RateSearch, LeavesTheStateAsItWasAndFindsARateThatTrains) {
  Session session(make_deep());
  const Dataset data = make_samples(256, session.model());
  const auto before = states_of(session);
  TrainerOptions options;
  std::atomic<bool> interrupt{false};
  auto batches = std::make_unique<DatasetBatches>(&data, session.model(), "step", 32, 0, true);
  const FoundRate found = find_rate(&session, std::move(batches), options, 1e-3, interrupt);
  expect_equal(states_of(session), before);
  EXPECT_LE(found.points.size(), static_cast<size_t>(kRateSteps));
  EXPECT_GT(found.rate, 1e-5);
  EXPECT_LT(found.rate, 1e-1);
}

}  // namespace
}  // namespace onnx_train::automatic_test
