#include "onnx_passes/training/training_mode.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/passes.h"

#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"

namespace onnx_train::training_mode_test {
namespace {

BuildOptions options(Mode mode) {
  BuildOptions options;
  options.mode = mode;
  options.seed = 7;
  return options;
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

// With half of the outputs dropped and the others doubled, the loss of ones is not that of ones.
TEST(TrainingMode, ADropoutThatGivesAnOutputDrops) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,64] x) => (float[N,64] y) <float[64] w = {)" +
                          [] {
                            std::string ones = "1";
                            for (int i = 1; i < 64; ++i) ones += ", 1";
                            return ones;
                          }() +
                          "}> { h = Mul (x, w) y = Dropout (h) }");
  infer_types(model.graph.get());
  BuildOptions build = options(Mode::kTrain);
  build.loss = "mse";
  build_training_model(&model, build);
  Session session(std::move(model));
  const Tensor ones = Tensor::full(DType::kFloat, {4, 64}, 1);
  const TensorMap batch = {{"x", ones}, {"labels", ones}};
  EXPECT_EQ(session.run("evaluate", batch).at("loss").at(0), 0);
  EXPECT_EQ(session.run("step", batch).at("loss").at(0), 1);  // (0 - 1)² or (2 - 1)²
}

TEST(TrainingMode, InferenceFormReadsRunningStatisticsAndDropsNothing) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,2] x) => (float[2,2] y, float[2] m, bool[2,2] kept)
        <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] mean = {1, 2}, float[2] var = {4, 1}, float r = {0.5},
         bool t = {1}> {
      n, m, v = BatchNormalization <training_mode = 1, epsilon = 0.0> (x, s, b, mean, var)
      d, kept = Dropout (n, r, t)
      y = Dropout (d, r, t) })");
  infer_types(model.graph.get());
  to_inference(*model.graph);
  Session session(std::move(model));
  const auto& out = session.run("predict", {{"x", Tensor::of<float>({2, 2}, {3, 4, 5, 6})}});
  const std::vector<double> want = {1, 5, 2, 9};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out.at("y").at(i), want[static_cast<size_t>(i)]);
    EXPECT_EQ(out.at("kept").at(i), 1);
  }
  EXPECT_EQ(out.at("m").at(1), 2);
}

TEST(TrainingMode, ComputedStatisticsAreNoState) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x, float[2] m) => (float[N,2] y) <float[2] s = {1, 1}, float[2] b = {0, 0}> {
      [bn] y = BatchNormalization(x, s, b, m, s) })");
  infer_types(model.graph.get());
  training_mode(options(Mode::kTrain)).run(model);
  EXPECT_EQ(model.find_entry_point("step")->algorithm->num_nodes(), 0u);
  EXPECT_EQ(model.metadata("onnx_train.batch_norm"),
            "1 of 1 batch normalization keeps its running statistics: the model computes them");
}

// Trains scale and bias of one batch norm on two channels by a step of rate 0.
Session batch_norm_session(bool unbiased_variance) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x) => (float[N,2] y)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 10}, float[2] v = {1, 2}, float half = {0.5}> {
      h = BatchNormalization <momentum = 0.75> (x, s, b, m, v)
      y = Dropout (h, half)
    })");
  infer_types(model.graph.get());
  BuildOptions build = options(Mode::kTrain);
  build.loss = "mse";
  build.optimizer = "sgd";
  build.unbiased_variance = unbiased_variance;
  build_training_model(&model, build);
  return Session(std::move(model));
}

TEST(TrainingMode, AStepMovesTheStatisticsAndTheKey) {
  const Tensor x = Tensor::of<float>({3, 2}, {1, 4, 2, 4, 6, 4});  // means 3 and 4, squared deviations 14 and 0
  for (bool unbiased : {true, false}) {
    Session session = batch_norm_session(unbiased);
    session.run("step", {{"x", x}, {"labels", x}, {"learning_rate", Tensor::scalar(0.0f)}});
    const Tensor mean = session.state().get("m"), variance = session.state().get("v");
    EXPECT_FLOAT_EQ(mean.data<float>()[0], 0.25f * 3);
    EXPECT_FLOAT_EQ(mean.data<float>()[1], 0.75f * 10 + 0.25f * 4);
    EXPECT_FLOAT_EQ(variance.data<float>()[0], 0.75f + 0.25f * 14 / (unbiased ? 2 : 3));
    EXPECT_FLOAT_EQ(variance.data<float>()[1], 0.75f * 2);
    const Tensor key = session.state().get("state/random_key");
    EXPECT_EQ(key.data<uint64_t>()[0], 7u);
    EXPECT_EQ(key.data<uint64_t>()[1], 1u);
  }
}

TEST(TrainingMode, PredictUsesRunningStatisticsAndNoDropout) {
  Session session = batch_norm_session(true);
  const Tensor y = session.run("predict", {{"x", Tensor::of<float>({1, 2}, {5, 10})}}).at("y");
  EXPECT_NEAR(y.at(0), 5, 1e-4);
  EXPECT_NEAR(y.at(1), 0, 1e-4);
}

}  // namespace
}  // namespace onnx_train::training_mode_test
