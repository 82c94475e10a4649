#include "onnx_passes/training/streamed_states.h"

#include <gtest/gtest.h>

#include "onnx_passes/passes.h"
#include "tests/support/transformer.h"

namespace onnx_train::streamed_states_test {
namespace {

using Slots = std::set<std::string>;

// The roles of the streamed states of a network with matrices, vectors and a table.
Slots streamed(const BuildOptions& options) {
  Model model = make_transformer({.blocks = 1, .width = 32, .tokens = 16});
  build_training_model(&model, options);
  const std::set<std::string> names = streamed_states(model);
  Slots slots;
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) {
      if (names.contains(binding.state->name())) slots.insert(binding.state->role()->name);
    }
  }
  return slots;
}

Slots streamed(const char* optimizer) {
  BuildOptions options;
  options.optimizer = optimizer;
  return streamed(options);
}

TEST(StreamedStates, AreWhatOptimizersRememberOfEachElement) {
  EXPECT_EQ(streamed("sgd"), Slots());
  EXPECT_EQ(streamed("sgd(momentum=0.9)"), Slots({"momentum_buffer"}));
  EXPECT_EQ(streamed("adamw"), Slots({"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(streamed("adamw(amsgrad=1)"), Slots({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}));
  EXPECT_EQ(streamed("lamb"), Slots({"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(streamed("lion"), Slots({"exp_avg"}));
}

TEST(StreamedStates, AreNoneThatAllThreadsRead) {
  EXPECT_EQ(streamed("adamw8bit(min_8bit_size=1)"), Slots({"state1", "state2"}));
  EXPECT_EQ(streamed("nadam"), Slots({"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(streamed("adafactor"), Slots({"variance"}));  // of vectors
}

TEST(StreamedStates, AreNoneThatNetworksOrNormsRead) {
  EXPECT_EQ(streamed("schedule_free"), Slots({"exp_avg_sq", "z"}));
  BuildOptions options;
  options.ema = 0.9;
  EXPECT_EQ(streamed(options), Slots({"exp_avg", "exp_avg_sq"}));
  options.ema = 0;
  options.accumulate = true;
  EXPECT_EQ(streamed(options), Slots({"exp_avg", "exp_avg_sq"}));
  options.precision = Precision::kFloat8;
  EXPECT_EQ(streamed(options), Slots({"exp_avg", "exp_avg_sq"}));
  options.precision = Precision::kFloat16;
  EXPECT_EQ(streamed(options), Slots({"exp_avg", "exp_avg_sq"}));
}

}  // namespace
}  // namespace onnx_train::streamed_states_test
