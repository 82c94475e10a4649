#include "runtime/models/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/models/size_search.h"

namespace onnx_train::trial_test {
namespace {

using testing::Contains;
using testing::HasSubstr;

onnx::ModelProto parse(const std::string& body) {
  onnx::ModelProto proto;
  to_proto(from_text("<ir_version: 10, opset_import: [\"\" : 21]> g " + body), &proto);
  return proto;
}

Trial try_model(const std::string& body, const std::string& loss, const std::vector<std::string>& sizes = {}) {
  const onnx::ModelProto proto = parse(body);
  Model model = import_model(proto);
  TrialOptions options;
  options.build.loss = loss;
  options.build.optimizer = "sgd";
  options.sizes = sizes;
  options.import = [&](const std::vector<std::string>& dims) { return import_model(proto, {.dims = dims}); };
  return try_training(&model, options, default_device());
}

TEST(Trial, AllSizesAreKnown) {
  const Trial trial = try_model("(float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }", "mse");
  EXPECT_TRUE(trial.obstacles.empty());
  EXPECT_EQ(trial.unfit, "");
}

// A network that halves its images five times and adds what it doubles again: sizes of 8 do not fit, nor do those of
// the labels follow from symbols.
TEST(Trial, SearchesForSizesThatFit) {
  std::string nodes = "h0 = Conv(x, w) ";
  for (int i = 1; i <= 5; ++i) {
    nodes += concat("h", i, " = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h", i - 1, ") ");
  }
  nodes += "u5 = Identity(h5) ";
  for (int i = 4; i >= 0; --i)
    nodes += concat("d", i, " = Resize(u", i + 1, ", , twice) u", i, " = Add(d", i, ", h", i, ") ");
  const Trial trial = try_model(
      "(float[N, 1, H, W] x) => (float[N, 1, A, B] y) <float[1, 1, 1, 1] w = {2}, "
      "float[4] twice = {1, 1, 2, 2}> { " +
          nodes + "y = Sigmoid(u0) }",
      "mse");
  EXPECT_TRUE(trial.obstacles.empty()) << in_one_sentence(trial.obstacles);
  EXPECT_THAT(trial.sizes, Contains("H=32"));
  EXPECT_FALSE(trial.fixed);
  EXPECT_NE(trial.unfit, "");
}

TEST(Trial, FixesSizesWhereNothingElseHelps) {
  const Trial trial = try_model(R"((float[N, L, 2] x) => (float y)
    <float[2] w = {2, 3}, int64 one = {1}, int64 first = {1}> {
      s = Shape(x) l = Gather(s, first) c = Greater(l, one) z = Mul(x, w)
      y = If (c) <then_branch = t () => (float p) { axis = Constant<value_ints = [1]>() p = ReduceSum<keepdims = 0>(z, axis) },
                  else_branch = e () => (float q) { q = Neg(z) }> })",
                                "mse");
  EXPECT_TRUE(trial.obstacles.empty()) << in_one_sentence(trial.obstacles);
  EXPECT_TRUE(trial.fixed);
  EXPECT_EQ(trial.sizes, std::vector<std::string>{"L=8"});
}

TEST(Trial, NamesWhatNoSizeChangesAndTheSizesThatWereTried) {
  const Trial missing = try_model(
      "(float[N, M, 2] x) => (float y) <float[2] w = {2, 3}, int64[1] first = {1}, int64[1] all = {-1}> { z = Mul(x, "
      "w) "
      "a = ReduceMean<keepdims = 0>(x, first) b = Cast<to = 2>(a) c = Reshape(b, all) u = ImageDecoder(c) "
      "f = Cast<to = 1>(u) m = ReduceMean<keepdims = 0>(f) n = ReduceMean<keepdims = 0>(z) y = Mul(n, m) }",
      "y");
  ASSERT_EQ(missing.obstacles.size(), 1u);
  EXPECT_THAT(in_one_sentence(missing.obstacles), HasSubstr("no kernel for the operator ImageDecoder"));
  EXPECT_EQ(missing.obstacles[0].way_out, "");
  const Trial unfit = try_model(
      "(float[N, M, 2] x) => (float[N, K] y) <float[2] w = {2, 3}, int64[2] t = {-1, 3554}> { z = Mul(x, w) y = "
      "Reshape(z, t) }",
      "mse(y, t2)");
  ASSERT_FALSE(unfit.obstacles.empty());
  EXPECT_THAT(in_one_sentence(unfit.obstacles), HasSubstr("tried M of 8, 1, 2, 32, 64, 224 and"));
  EXPECT_TRUE(try_model("(float[N, M, 2] x) => (float[N, K] y) <float[2] w = {2, 3}, int64[2] t = {-1, 3554}> {"
                        " z = Mul(x, w) y = Reshape(z, t) }",
                        "mse(y, t2)", {"M=1777"})
                  .obstacles.empty());
}

TEST(SizeSearch, HasABound) {
  std::string inputs;
  for (int i = 0; i < 30; ++i) inputs += concat(i ? ", " : "", "float[N, D", i, "] x", i);
  const Model model = import_model(parse("(" + inputs + ") => (float[N, D0] y) { y = Relu(x0) }"));
  EXPECT_LE(size_candidates(model, {}, 100).size(), 40u);
  EXPECT_EQ(size_candidates(model, {}, 10'000'000).size(), 3u);
  EXPECT_THAT(size_candidates(model, {"D3=7"}, 100), testing::Each(Contains("D3=7")));
}

}  // namespace
}  // namespace onnx_train::trial_test
