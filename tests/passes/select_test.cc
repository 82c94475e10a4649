#include "onnx_passes/model/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/passes.h"

namespace onnx_train::select_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Select, Globs) {
  EXPECT_TRUE(matches("fc1.weight", "fc1.weight"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("layer?.*", "layer3.conv.bias"));
  EXPECT_TRUE(matches("*.bias", "a.bias.b.bias"));
  EXPECT_TRUE(matches("h[0-3].w", "h2.w"));
  EXPECT_TRUE(matches("h[!0-3].w", "h4.w"));
  EXPECT_TRUE(matches("a[]b]c", "a]c"));
  EXPECT_TRUE(matches("a[b", "a[b"));
  EXPECT_TRUE(matches("/encoder*", "/encoder/layer.0/MatMul"));
  EXPECT_TRUE(matches("*.w", ".hidden.w"));
  EXPECT_TRUE(matches("a\\*", "a\\b"));
  EXPECT_FALSE(matches("h[0-3].w", "h4.w"));
  EXPECT_FALSE(matches("fc1", "fc1.weight"));
  EXPECT_FALSE(matches("?", ""));
  EXPECT_FALSE(matches(std::string(40, '*') + "b", std::string(200, 'a')));
  std::string stars;
  for (int i = 0; i < 20; ++i) stars += "*a";
  EXPECT_FALSE(matches(stars + "*b", std::string(500, 'a')));  // in no time
}

Model model() {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[N,2] x) => (float[N,2] y)
    <float[2,2] "fc1.weight" = {1,2,3,4}, float[2] "fc1.bias" = {1,2}, float[2,2] "fc2.weight" = {1,2,3,4},
     float[2] mean = {0,0}, float[2] variance = {1,1}, float scale = {2}, int64[1] axes = {0}>
    {
      a = Gemm(x, "fc1.weight", "fc1.bias")
      n = BatchNormalization(a, "fc1.bias", "fc1.bias", mean, variance)
      s = Mul(n, scale)
      y = MatMul(s, "fc2.weight")
    })");
  infer_types(model.graph.get());
  mark_constants(&model);
  return model;
}

std::vector<std::string> selected(const std::vector<std::string>& train, const std::vector<std::string>& freeze) {
  const Model m = model();
  std::vector<std::string> names;
  for (const Value* value : select_trainable(m, train, freeze)) names.push_back(value->name());
  return names;
}

std::string message(const std::vector<std::string>& train, const std::vector<std::string>& freeze) {
  try {
    selected(train, freeze);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Select, WeightsButNeitherStatisticsNorScalars) {
  EXPECT_THAT(selected({}, {}), ElementsAre("fc1.weight", "fc1.bias", "fc2.weight"));
  EXPECT_THAT(selected({"scale", "fc2.*"}, {}), ElementsAre("fc2.weight", "scale"));
  EXPECT_THAT(selected({}, {"*.bias"}), ElementsAre("fc1.weight", "fc2.weight"));
  EXPECT_THAT(selected({"*"}, {"fc1.*", "scale"}), ElementsAre("fc2.weight"));
}

TEST(Select, OneElementIsTrainedWhereItIsABias) {
  Model m = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[N,2] x) => (float[N,1] y)
    <float[2,1] w = {1,2}, float[1] bias = {1}, float[1] scale = {2}, float[1] epsilon = {1}>
    {
      s = Mul(x, scale)
      e = Add(s, epsilon)
      y = Gemm(e, w, bias)
    })");
  infer_types(m.graph.get());
  mark_constants(&m);
  std::vector<std::string> names;
  for (const Value* weight : select_trainable(m, {}, {})) names.push_back(weight->name());
  EXPECT_THAT(names, ElementsAre("w", "bias"));
}

TEST(Select, PatternsFromAFile) {
  const std::string path = testing::TempDir() + "/weights.txt";
  std::ofstream(path) << "fc2.weight\n\n*.bias  \r\n";
  EXPECT_THAT(selected({"@" + path}, {}), ElementsAre("fc1.bias", "fc2.weight"));
}

TEST(Select, APatternThatMatchesNothingIsAnError) {
  EXPECT_EQ(message({"fc1.wieght"}, {}),
            "--train 'fc1.wieght' matches none of the 4 weights; did you mean 'fc1.weight', 'fc2.weight', 'fc1.bias'?");
  EXPECT_THAT(message({}, {"encoder.*"}),
              HasSubstr("--freeze 'encoder.*' matches none of the 4 weights; they are called "
                        "'fc1.weight', 'fc1.bias', 'fc2.weight', ..."));
  EXPECT_THAT(message({"axes"}, {}), HasSubstr("--train 'axes' is int64[1], no float, and has no gradient"));
  EXPECT_THAT(message({"variance", "mean"}, {}), HasSubstr("--train 'variance' names running statistics"));
  EXPECT_THAT(selected({"variance", "fc2.weight"}, {}), ElementsAre("fc2.weight"));
  EXPECT_THAT(message({"@/nowhere"}, {}), HasSubstr("--train @/nowhere: the file cannot be read"));
  EXPECT_THAT(selected({}, {"*"}), testing::IsEmpty());
}

}  // namespace
}  // namespace onnx_train::select_test
