#include "onnx_passes/passes/training_mode.h"

#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "tests/golden.h"

namespace onnx_train {
namespace {

BuildOptions options(Mode mode) {
  BuildOptions options;
  options.mode = mode;
  options.seed = 7;
  return options;
}

TEST(TrainingMode, BatchNormalizationAndDropoutInTraining) {
  expect_golden("training_mode", {training_mode(options(Mode::kTrain))});
}

TEST(TrainingMode, FrozenCopiesNothing) {
  expect_golden("training_mode_frozen", {training_mode(options(Mode::kFrozen))});
}

TEST(TrainingMode, TrainingNodesGetInferenceForm) {
  expect_golden("training_mode_of_training_nodes", {training_mode(options(Mode::kTrain))});
}

TEST(TrainingMode, ControlFlowReadsTrainingVersions) {
  expect_golden("training_mode_control_flow", {training_mode(options(Mode::kTrain))});
}

TEST(TrainingMode, TrainingValueIsTheCopyOrTheValue) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,4] x) => (float[N,4] y) { h = Relu(x) d = Dropout(h) y = Neg(d) })");
  infer_types(model.graph.get());
  training_mode(options(Mode::kTrain)).run(model);
  const EntryPoint& step = *model.find_entry_point("step");
  EXPECT_EQ(training_value(step, model.graph->find("y"))->name(), "train/y");
  EXPECT_EQ(training_value(step, model.graph->find("h"))->name(), "h");
  EXPECT_EQ(to_string(step.algorithm->find("train/y")->type()), "float[N,4]");
}

TEST(TrainingMode, ComputedStatisticsAreRefusedByName) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x, float[2] m) => (float[N,2] y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
      [bn] y = BatchNormalization(x, s, b, m, s) })");
  infer_types(model.graph.get());
  try {
    training_mode(options(Mode::kTrain)).run(model);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("[TrainingMode] node 'bn' (BatchNormalization): its running mean 'm'"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace onnx_train
