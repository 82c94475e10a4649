#include "onnx_passes/model/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/passes.h"

namespace onnx_train::analysis_test {
namespace {

std::vector<std::string> findings(const Model& model) {
  std::vector<std::string> lines;
  for (const Finding& f : inspect(model)) lines.push_back(f.subject + ": " + f.what);
  return lines;
}

Model parse(const std::string& body) {
  return from_text("<ir_version: 10, opset_import: [\"\" : 21, \"com.microsoft\" : 1]> g " + body);
}

Tensor ramp(Shape shape, double step = 1) {
  Tensor tensor(DType::kFloat, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, step * static_cast<double>(i));
  return tensor;
}

TEST(Analysis, ACleanModelHasNoFindings) {
  EXPECT_TRUE(findings(parse("(float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")).empty());
}

TEST(Analysis, MergedAndTiedWeights) {
  const Model model = parse(R"((float[N,2] x) => (float[N,2] y)
    <float[2] ones = {1, 1}, float[2] tied = {1, 2}, float[2] measured = {1, 2}> {
      copy = Identity(ones)
      a = Mul(x, ones) b = Mul(a, copy) c = Add(b, tied) d = Add(c, tied)
      size = Shape(measured) e = Expand(d, size) y = Add(e, measured)
    })");
  const auto lines = findings(model);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], testing::AllOf(testing::HasSubstr("ones: used by 2 nodes"), testing::HasSubstr("are equal")));
  EXPECT_THAT(lines[1], testing::HasSubstr("tied: used by 2 nodes"));
}

TEST(Analysis, AConstantIsNoTiedWeight) {
  Model model = parse(R"((float[N,2] x) => (float[N,2] y)
    <float[2] table = {1, 2}> { a = Add(x, table) y = Mul(a, table) })");
  EXPECT_EQ(findings(model).size(), 1u);
  model.set_metadata("onnx_train.constant.table", "a table of sines and cosines");
  EXPECT_TRUE(findings(model).empty());
}

TEST(Analysis, PartsOfOneBiasAreNotTied) {
  const auto lines = [](const std::string& second) {
    return findings(parse(R"((float[N,2] x) => (float[N,2] y)
      <float[4] bias = {1, 2, 3, 4}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9}> {
        first = Slice(bias, zero, two) second = )" +
                          second + R"( a = Add(x, first) y = Add(a, second)
      })"));
  };
  EXPECT_TRUE(lines("Slice(bias, two, end)").empty());
  EXPECT_EQ(lines("Slice(bias, one, two)").size(), 1u);
}

TEST(Analysis, StatisticsThatAreWeights) {
  const Model model = parse(R"((float[N,2,3] x) => (float[N,2,3] y)
    <float[2] gamma = {1, 2}, float[2] beta = {0, 1}, float[2] mean = {0, 2}> {
      var = Identity(gamma)
      [norm] y = BatchNormalization(x, gamma, beta, mean, var)
    })");
  EXPECT_THAT(findings(model)[0], testing::HasSubstr("its running variance is also 'gamma'"));
}

TEST(Analysis, CopiesTransposesAndExpandedWeights) {
  Model model = parse("(float[N] x) => (float[N] y) { y = Relu(x) }");
  Graph& g = *model.graph;
  g.add_initializer("table", ramp({8, 4}));
  Tensor turned(DType::kFloat, {4, 8});
  for (int64_t i = 0; i < 32; ++i) turned.set(i % 4 * 8 + i / 4, static_cast<double>(i));
  g.add_initializer("head", turned);
  g.add_initializer("copy", ramp({8, 4}));
  g.add_initializer("other", ramp({8, 4}, 2));
  Tensor expanded(DType::kFloat, {3, 1, 8});
  for (int64_t i = 0; i < 24; ++i) expanded.set(i, static_cast<double>(i % 8));
  g.add_initializer("token", expanded);
  EXPECT_THAT(findings(model), testing::ElementsAre("head: equal to 'table', transposed", "copy: equal to 'table'",
                                                    "token: equal to 'table', elements 0 to 1 of axis 0, repeated",
                                                    "token: stored 3 times over along its first axis, [3,1,8]"));
}

TEST(Analysis, CopiesInAnotherShapeAndRowsOfAnotherWeight) {
  Model model = parse("(float[N] x) => (float[N] y) { y = Relu(x) }");
  Graph& g = *model.graph;
  g.add_initializer("whole", ramp({6, 8}));
  g.add_initializer("flat", ramp({48}));
  Tensor rows(DType::kFloat, {3, 8});
  for (int64_t i = 0; i < rows.size(); ++i) rows.set(i, static_cast<double>(i + 16));
  g.add_initializer("rows", rows);
  EXPECT_THAT(findings(model), testing::ElementsAre("flat: equal to 'whole', in another shape",
                                                    "rows: equal to 'whole', elements 2 to 4 of axis 0"));
}

TEST(Analysis, NonFiniteWeights) {
  Model model = parse("(float[N] x) => (float[N] y) { y = Relu(x) }");
  Tensor broken = ramp({3});
  broken.set(1, NAN);
  model.graph->add_initializer("broken", broken);
  Tensor mask(DType::kFloat, {3});
  mask.set(1, -INFINITY);
  model.graph->add_initializer("mask", mask);
  EXPECT_THAT(findings(model), testing::ElementsAre("broken: 1 of its 3 elements are not finite"));
}

}  // namespace
}  // namespace onnx_train::analysis_test
