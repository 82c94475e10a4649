// Batch normalization is decided node by node: whose statistics are always those of its batch, whose are trained, and
// whose are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/frozen_statistics.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/session/session.h"

namespace onnx_train::batch_statistics_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Model imported(const std::string& text, const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr) {
  onnx::ModelProto proto;
  to_proto(from_text(R"(<ir_version: 10, opset_import: ["" : 21]> )" + text), &proto);
  return import_model(proto, options, findings);
}

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> names;
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (!node->is("Constant")) names.push_back(node->op());
  }
  return names;
}

std::vector<std::string> initializers(const Model& model) {
  std::vector<std::string> names;
  for (const Value* value : model.graph->initializers()) names.push_back(value->name());
  return names;
}

// ---- With training_mode=1: statistics of the batch, or running ones

// y = BatchNormalization of Relu(x) with two channels and these parameters.
std::string layer(const std::string& outputs, const std::string& scale, const std::string& mean,
                  const std::string& variance, const std::string& graph_outputs = "float[N,2,3] y") {
  return "g (float[N,2,3] x) => (" + graph_outputs + ") <float[2] s = {" + scale +
         "}, float[2] b = {0, 0}, float[2] m = {" + mean + "}, float[2] v = {" + variance + "}> { h = Relu(x) [bn] " +
         outputs + " = BatchNormalization <training_mode = 1> (h, s, b, m, v) }";
}

struct Decided {
  std::string op, what;
};

Decided decided(const std::string& text) {
  std::vector<Finding> findings;
  const Model model = imported(text, {}, &findings);
  return {model.graph->last()->op(), findings.empty() ? "" : findings.back().what};
}

TEST(BatchStatistics, OfALayerThatWasExportedInTrainingModeAreRunning) {
  const Decided moved = decided(layer("y, nm, nv", "1, 2", "0, 0.1", "1, 0.9"));
  EXPECT_EQ(moved.op, "BatchNormalization");
  EXPECT_EQ(moved.what, "");
  const Decided read = decided(layer("y, nm, nv", "1, 2", "0, 0", "1, 1", "float[N,2,3] y, float[2] nm"));
  EXPECT_EQ(read.op, "BatchNormalization");
  EXPECT_EQ(read.what, "");
  const Decided fresh = decided(layer("y, nm, nv", "1, 1", "0, 0", "1, 1"));
  EXPECT_EQ(fresh.op, "BatchNormalization");
  EXPECT_THAT(fresh.what, HasSubstr("it was never trained"));
}

TEST(BatchStatistics, AreMeantWhereATrainedLayerHasNone) {
  const Decided trained = decided(layer("y, nm, nv", "1, 2", "0, 0", "1, 1"));
  EXPECT_EQ(trained.op, "BatchNormalizationTrain");
  EXPECT_THAT(trained.what, HasSubstr("statistics are 0 and 1, but it was trained"));
  const Decided silent = decided(layer("y", "1, 1", "0, 0", "1, 1"));
  EXPECT_EQ(silent.op, "BatchNormalizationTrain");
  EXPECT_THAT(silent.what, HasSubstr("no new ones are made"));
}

// [2, 2, 3] -> [1, 4, 3], as InstanceNormalization is exported; `scale` is that of four channels.
std::string instance_norm(const std::string& scale, const std::string& shape = "1, 4, 3",
                          const std::string& channels = "4") {
  return "g (float[2,2,3] x) => (float[2,2,3] y) <float[" + channels + "] s = {" + scale + "}, float[" + channels +
         "] b = {0, 0, 0, 0}, float[" + channels + "] m = {0, 0, 0, 0}, float[" + channels +
         "] v = {1, 1, 1, 1}, int64[3] to = {" + shape +
         "}, int64[3] back = {2, 2, 3}> { h = Relu(x) r = Reshape(h, to) n, nm, nv = BatchNormalization "
         "<training_mode = 1, epsilon = 0.5> (r, s, b, m, v) y = Reshape(n, back) }";
}

TEST(BatchStatistics, OfSamplesAreOneInstanceNormalization) {
  const Model dummies = imported(instance_norm("1, 1, 1, 1"));
  EXPECT_THAT(operators(dummies), ElementsAre("Relu", "InstanceNormalization"));
  EXPECT_THAT(initializers(dummies), IsEmpty());  // none is a weight or state
  EXPECT_EQ(dummies.graph->last()->attr("epsilon", 0.0f), 0.5f);
  const Model repeated = imported(instance_norm("1, 2, 1, 2"), {.batch = "dynamic"});
  EXPECT_THAT(operators(repeated), ElementsAre("Relu", "InstanceNormalization"));
  EXPECT_EQ(to_string(repeated.graph->last()->input(1)->type()), "float[2]");
  EXPECT_EQ(to_string(repeated.graph->outputs()[0]->type()), "float[batch,2,3]");
  const Model apart = imported(instance_norm("1, 2, 3, 4"));
  EXPECT_THAT(operators(apart), ElementsAre("Relu", "Reshape", "InstanceNormalization", "Reshape"));
}

TEST(BatchStatistics, OfSamplesAreFoundWithADynamicBatchAndWithABatchOfOne) {
  const Model dynamic = imported(R"(g (float[N,2,3] x) => (float[N,2,3] y)
    <float[2] s = {1, 2}, float[2] b = {0, 0}, float[2] m = {1, 2}, float[2] v = {4, 1}, int64[2] front = {1, -1}> {
      all = Shape(x) n = Shape <start = 0, end = 1> (x) rest = Shape <start = 2> (x) to = Concat <axis = 0> (front, rest)
      r = Reshape(x, to) st = Tile(s, n) bt = Tile(b, n) mt = Tile(m, n) vt = Tile(v, n)
      q, nm, nv = BatchNormalization <training_mode = 1> (r, st, bt, mt, vt) y = Reshape(q, all) })");
  EXPECT_THAT(operators(dynamic), ElementsAre("InstanceNormalization"));
  EXPECT_THAT(initializers(dynamic), ElementsAre("s", "b"));
  const Model single = imported(R"(g (float[1,2,3] x) => (float[1,2,3] y)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}, int64[3] to = {1, 2, 3}> {
      r = Reshape(x, to) q, nm, nv = BatchNormalization <training_mode = 1> (r, s, b, m, v) y = Reshape(q, to) })");
  EXPECT_THAT(operators(single), ElementsAre("InstanceNormalization"));
}

TEST(BatchStatistics, AReshapeThatKeepsTheChannelsIsNoInstanceNormalization) {
  const auto reshaped = [](const std::string& from, const std::string& to) {
    return decided("g (float[" + from +
                   "] x) => (y) <float[2] s = {1, 2}, float[2] b = {0, 0}, float[2] m = {1, 1}, "
                   "float[2] v = {1, 1}, int64[3] to = {" +
                   to +
                   "}> { r = Reshape(x, to) y, nm, nv = "
                   "BatchNormalization <training_mode = 1> (r, s, b, m, v) }")
        .op;
  };
  EXPECT_EQ(reshaped("1,2,3,3", "1, 2, 9"), "BatchNormalization");
  EXPECT_EQ(reshaped("2,9", "1, 2, 9"), "BatchNormalization");
  EXPECT_EQ(reshaped("1,18,1", "1, 2, 9"), "InstanceNormalization");  // groups of channels
}

TEST(BatchStatistics, ComputedOnesNormalizeInTrainingAndInInference) {
  Model model = imported(R"(g (float[N,2] x) => (float[N,2] y)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, int64[1] axes = {0}> {
      m = ReduceMean <keepdims = 0> (x, axes)
      n, nm, nv = BatchNormalization <training_mode = 1, epsilon = 0.0> (x, s, b, m, m)
      y = Identity(n) })");
  EXPECT_THAT(operators(model), ElementsAre("BatchNormalizationTrain", "Identity"));
  const Tensor x = Tensor::of<float>({2, 2}, {3, 4, 5, 6});
  BuildOptions options;
  options.loss = "mse";
  options.optimizer = "sgd";
  build_training_model(&model, options);
  EXPECT_THAT(state_of(model, "step"), testing::Not(testing::Contains("m")));
  Session session(std::move(model));
  const double evaluated = session.run("evaluate", {{"x", x}, {"labels", x}}).at("loss").at(0);
  EXPECT_NEAR(session.run("step", {{"x", x}, {"labels", x}}).at("loss").at(0), evaluated, 1e-5);
  Session exported(strip_training(session.snapshot()));
  const Tensor y = exported.run("predict", {{"x", Tensor::of<float>({2, 2}, {1, 0, 5, 8})}}).at("y");
  EXPECT_NEAR(y.at(0), -y.at(2), 0.2);  // the mean of the batch, not of another
}

TEST(BatchStatistics, NewOnesThatAreReadMoveAsOnnxSaysIt) {
  Model model = imported(R"(g (float[1,4] x) => (float[1,2,2] y, float[2] nm, float[2] nv)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {4, 8}, float[2] v = {2, 4}, int64[3] to = {1, 2, 2}> {
      r = Reshape(x, to)
      y, nm, nv = BatchNormalization <training_mode = 1, momentum = 0.75> (r, s, b, m, v) })");
  Session session(std::move(model));
  const auto& out = session.run("predict", {{"x", Tensor::of<float>({1, 4}, {1, 3, 2, 6})}});
  EXPECT_FLOAT_EQ(out.at("nm").data<float>()[0], 0.75f * 4 + 0.25f * 2);
  EXPECT_FLOAT_EQ(out.at("nv").data<float>()[1], 0.75f * 4 + 0.25f * 4);
}

// ---- In training: those that are kept

// Two layers: a convolution's stand-in w1, bn1, w2, bn2; bn2 was exported in training mode.
constexpr const char* kTwoLayers = R"(g (float[N,2] x) => (float[N,2] y)
    <float[2,2] "back.w" = {1, 2, 3, 4}, float[2] "back.s" = {1, 2}, float[2] "back.b" = {0, 1},
     float[2] "back.mean" = {1, 2}, float[2] "back.var" = {4, 1}, float[2,2] "head.w" = {1, 2, 3, 5},
     float[2] "head.s" = {1, 2}, float[2] "head.b" = {0, 1}, float[2] "head.mean" = {1, 2}, float[2] "head.var" = {4, 1}> {
      a = MatMul(x, "back.w")
      [bn1] n = BatchNormalization (a, "back.s", "back.b", "back.mean", "back.var")
      c = MatMul(n, "head.w")
      [bn2] y, nm, nv = BatchNormalization <training_mode = 1> (c, "head.s", "head.b", "head.mean", "head.var") })";

struct Kept {
  std::vector<std::string> trained;
  std::string summary;
};

Kept decide(const std::string& text, const std::vector<std::string>& train, const std::vector<std::string>& freeze,
            Mode mode = Mode::kTrain) {
  const Model model = imported(text);
  BuildOptions options;
  options.train = train;
  options.freeze = freeze;
  options.mode = mode;
  const BatchNormStatistics statistics = decide_statistics(model, options);
  Kept kept{{}, statistics.summary};
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (statistics.trained.count(node)) kept.trained.push_back(node->name());
  }
  return kept;
}

TEST(KeptStatistics, FollowTheWeightsOfTheirLayer) {
  EXPECT_THAT(decide(kTwoLayers, {}, {"back*"}).trained, ElementsAre("bn2"));
  EXPECT_THAT(decide(kTwoLayers, {"head*"}, {}).trained, ElementsAre("bn2"));
  EXPECT_THAT(decide(kTwoLayers, {"head.w"}, {}).trained, IsEmpty());
  EXPECT_THAT(decide(kTwoLayers, {}, {"back.s"}).trained, ElementsAre("bn1", "bn2"));  // its bias is trained
  EXPECT_THAT(decide(kTwoLayers, {}, {"back.s", "back.b"}).trained, ElementsAre("bn2"));
  EXPECT_THAT(decide(kTwoLayers, {}, {"back.w"}).trained, ElementsAre("bn1", "bn2"));
  EXPECT_EQ(decide(kTwoLayers, {}, {"back.s", "back.b"}).summary,
            "1 of 2 batch normalizations keep their running statistics: none of their weights is trained");
}

TEST(KeptStatistics, CanBeNamed) {
  EXPECT_THAT(decide(kTwoLayers, {}, {"back.mean"}).trained, ElementsAre("bn2"));
  EXPECT_THAT(decide(kTwoLayers, {"head*", "back.mean"}, {}).trained, ElementsAre("bn1", "bn2"));
  EXPECT_THAT(decide(kTwoLayers, {"*"}, {"back.s", "back.b"}).trained, ElementsAre("bn2"));
  EXPECT_THROW(decide(kTwoLayers, {}, {"back.means"}), Error);
}

TEST(KeptStatistics, WithoutWeightsFollowThoseBefore) {
  const std::string text = R"(g (float[N,2] x) => (float[N,2] y)
    <float[2,2] w1 = {1, 2, 3, 4}, float[2] m1 = {1, 2}, float[2] m2 = {1, 3}, float[2] v = {1, 2},
     float[2] v2 = {1, 3}, float[2] v0 = {1, 3}, float[2] m0 = {1, 3}, float[2,2] w2 = {1, 2, 3, 5}> {
      one = Relu(m0) zero = Relu(m0)
      [in] i = BatchNormalization (x, one, zero, m0, v0)
      a = MatMul(i, w1)
      [bn1] n = BatchNormalization (a, one, zero, m1, v)
      c = MatMul(n, w2)
      [bn2] y = BatchNormalization (c, one, zero, m2, v2) })";
  EXPECT_THAT(decide(text, {}, {}).trained, ElementsAre("in", "bn1", "bn2"));
  EXPECT_THAT(decide(text, {}, {"w1"}).trained, ElementsAre("in", "bn2"));
  EXPECT_THAT(decide(text, {}, {"w2"}).trained, ElementsAre("in", "bn1", "bn2"));
  EXPECT_THAT(decide(text, {"w2"}, {}).trained, ElementsAre("bn2"));
}

TEST(KeptStatistics, PreserveFollowsTheFile) {
  EXPECT_THAT(decide(kTwoLayers, {}, {}, Mode::kPreserve).trained, ElementsAre("bn2"));
  const Kept all = decide(kTwoLayers, {}, {});
  EXPECT_THAT(all.trained, ElementsAre("bn1", "bn2"));
  EXPECT_THAT(all.summary, HasSubstr("1 of 2 has training_mode 0 in the file, others 1: all train; --mode preserve"));
}

TEST(KeptStatistics, PreserveLeavesDropoutAsTheFileHasIt) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (float[N] y)
    <float r = {0.5}, bool t = {1}, bool f = {0}> { a = Dropout(x) b = Dropout(a, r, f) [on] y = Dropout(b, r, t) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.mode = Mode::kPreserve;
  training_mode(options).run(model);
  EXPECT_EQ(model.graph->num_nodes(), 0u + 1);  // the Identity of an output
  int dropped = 0;
  for (const Node* node : model.find_entry_point("step")->algorithm->nodes()) dropped += node->is("Dropout", kDomain);
  EXPECT_EQ(dropped, 1);
}

TEST(KeptStatistics, AreNormalizedWithInTraining) {
  BuildOptions options;
  options.loss = "mse";
  options.optimizer = "sgd";
  options.freeze = {"back*"};
  Model model = imported(kTwoLayers);
  build_training_model(&model, options);
  EXPECT_THAT(model.metadata("onnx_train.batch_norm"), HasSubstr("1 of 2 batch normalizations keep"));
  EXPECT_THAT(state_of(model, "step"), testing::Not(testing::Contains("back.mean")));
  EXPECT_THAT(state_of(model, "step"), testing::Contains("head.mean"));
}

// ---- One value per channel

TEST(OneValuePerChannel, IsRefusedInTraining) {
  Model model = imported(kTwoLayers);
  BuildOptions options;
  options.loss = "mse";
  build_training_model(&model, options);
  Session session(std::move(model));
  const Tensor x = Tensor::of<float>({1, 2}, {1, 2});
  try {
    session.run("step", {{"x", x}, {"labels", x}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("node 'train/bn1'"));
    EXPECT_THAT(error.what(), HasSubstr("is float[1,2], and batch normalization needs more than 1 value per channel"));
  }
  session.run("evaluate", {{"x", x}, {"labels", x}});
}

}  // namespace
}  // namespace onnx_train::batch_statistics_test
