#include "onnx_passes/tokens/add_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/model.h"
#include "tests/support/error_of.h"
#include "tests/support/small_decoder.h"

namespace onnx_train::add_cache_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Model decoder(const std::string& attention) {
  Model model = from_text(small_decoder(attention));
  infer_types(model.graph.get());
  return model;
}

std::vector<std::string> types_of(const std::vector<Value*>& values) {
  std::vector<std::string> types;
  for (const Value* value : values) {
    if (!value->is_initializer()) types.push_back(value->name() + " " + to_string(value->type()));
  }
  return types;
}

TEST(AddCache, KeysAndValuesGrowAtTheEnd) {
  Model model = decoder(kCausal);
  const auto tensors = add_cache(&model, CacheForm::kGrowing);
  EXPECT_EQ(tensors.size(), 2);
  EXPECT_THAT(types_of(model.graph->inputs()),
              ElementsAre("tokens int64[batch,length]", "past_key_values.0.key float[batch,2,past_sequence_length,2]",
                          "past_key_values.0.value float[batch,2,past_sequence_length,2]"));
  EXPECT_EQ(model.graph->outputs()[1]->name(), "present.0.key");
  EXPECT_EQ(model.graph->outputs()[2]->name(), "present.0.value");
}

TEST(AddCache, PlacesAreFilledByTheCaller) {
  Model model = decoder(kCausal);
  const auto tensors = add_cache(&model, CacheForm::kPlaces);
  EXPECT_THAT(types_of(model.graph->inputs()), testing::Contains("past_length int64[1]"));
  EXPECT_EQ(to_string(model.graph->outputs()[1]->type()), "float[batch,2,length,2]");
  ASSERT_EQ(tensors.size(), 2);
  EXPECT_EQ(tensors[0].axis, 2);
  EXPECT_TRUE(tensors[0].sizes[0].each_text);
  EXPECT_EQ(tensors[0].sizes[1].number, 2);
}

TEST(AddCache, NamesTheNodeThatMixesTokens) {
  const auto error_for = [](const std::string& attention) {
    Model model = decoder(attention);
    return error_of([&] { add_cache(&model, CacheForm::kGrowing); });
  };
  EXPECT_THAT(error_for("one = Constant <value_int = 1> () [sum] y = CumSum(x, one)"),
              HasSubstr("[Cache] node 'sum' (CumSum) mixes tokens"));
  EXPECT_THAT(error_for("axes = Constant <value_ints = [1]> () [mean] m = ReduceMean(x, axes) y = Add(x, m)"),
              HasSubstr("node 'mean' (ReduceMean) reduces over tokens"));
  EXPECT_THAT(error_for("[turn] t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(t, x) [rest] y = MatMul(x, s)"),
              HasSubstr("mixes tokens, and is not attention"));
  std::string scaled = kCausal;
  scaled.replace(scaled.find("y = Reshape"), 1, "z");
  EXPECT_THAT(error_for(scaled + "sizes = Shape(x) one = Constant <value_int = 1> () total = Gather(sizes, one) "
                                 "n = Cast <to = 1> (total) [scale] y = Mul(z, n)"),
              HasSubstr("node 'scale' (Mul) computes with a number that depends on how many tokens there are"));
  EXPECT_THAT(error_for("y = Relu(x)"), HasSubstr("no attention was found"));
}

TEST(AddCache, AFixedNumberOfTokensBecomesTheMost) {
  Model model = from_text(small_decoder(kCausal, "batch, 16"));
  add_cache(&model, CacheForm::kGrowing);
  EXPECT_THAT(types_of(model.graph->inputs()), testing::Contains("tokens int64[batch,sequence_length]"));
}

TEST(AddCache, AMaskOfAFixedNumberOfTokensIsRefused) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    fixed (int64[n, 8] ids, int64[n, 8] attention_mask) => (int64[n, 8] y) { y = Mul(ids, attention_mask) })");
  EXPECT_THAT(error_of([&] { add_cache(&model, CacheForm::kGrowing); }), HasSubstr("export it with a dynamic axis"));
}

}  // namespace
}  // namespace onnx_train::add_cache_test
