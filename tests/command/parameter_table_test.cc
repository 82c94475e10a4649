#include "tools/report/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace onnx_train::parameter_table_test {
namespace {

using testing::HasSubstr;

ParameterRow parameter(const std::string& name, double elements, const std::string& decay = "0.01") {
  return {name, "2 x 3", elements, "float32", decay, "exp_avg, exp_avg_sq"};
}

size_t count_lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

TEST(ParameterTable, FewHaveARowEach) {
  const std::string text = parameter_table({parameter("fc1.weight", 6), parameter("fc1.bias", 3, "")}, 80);
  EXPECT_THAT(text, HasSubstr("fc1.weight  2 x 3         6  float32   0.01  exp_avg, exp_avg_sq"));
  EXPECT_EQ(count_lines(text), 3u);
}

TEST(ParameterTable, ManyAreTotalsOfModules) {
  std::vector<ParameterRow> parameters = {parameter("embeddings.weight", 1000), parameter("head.weight", 10)};
  for (int i = 0; i < 6; ++i) {
    const std::string layer = "encoder.layers." + std::to_string(i);
    for (const char* part : {".attention.weight", ".mlp.weight"}) parameters.push_back(parameter(layer + part, 50));
    parameters.push_back(parameter(layer + ".norm.bias", 2, ""));
  }
  const std::string text = parameter_table(parameters, 100);
  EXPECT_LE(count_lines(text), 13u);
  EXPECT_THAT(text, HasSubstr("embeddings.weight"));  // alone in its module
  EXPECT_THAT(text, HasSubstr("encoder.layers.5.*  3 tensors       102  float32  some 0.01"));
}

TEST(ParameterTable, ManyNamesBesideModulesAreOneTotal) {
  std::vector<ParameterRow> parameters = {parameter("token.weight", 5), parameter("norm.bias", 5)};
  for (int i = 0; i < 40; ++i) parameters.push_back(parameter("val_" + std::to_string(i), 6));
  const std::string text = parameter_table(parameters, 80);
  EXPECT_EQ(count_lines(text), 4u);
  EXPECT_THAT(text, HasSubstr("token.weight"));
  EXPECT_THAT(text, HasSubstr("(others)      40 tensors       240"));
}

TEST(ParameterTable, NamesWithoutModulesAreOneTotal) {
  std::vector<ParameterRow> parameters;
  for (int i = 0; i < 40; ++i) parameters.push_back(parameter("onnx::MatMul_" + std::to_string(i), 6));
  const std::string text = parameter_table(parameters, 80);
  EXPECT_EQ(count_lines(text), 2u);
  EXPECT_THAT(text, HasSubstr("all        40 tensors"));
  EXPECT_EQ(count_lines(parameter_table({}, 80)), 1u);
}

}  // namespace
}  // namespace onnx_train::parameter_table_test
