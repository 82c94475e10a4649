// Kernels of convolutions and pools against the definition and against numbers that other runtimes agree on.
#include <gtest/gtest.h>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "tests/support/run_node.h"

namespace onnx_train::convolutions_test {
namespace {

using Ints = std::vector<int64_t>;

// x[n, g c, h, w], w[g o, c, kh, kw]; one stride, dilation and padding for both axes.
Tensor plain_conv(const Tensor& x, const Tensor& w, int64_t group, int64_t stride, int64_t dilation, int64_t pad) {
  const Shape &xs = x.shape(), &ws = w.shape();
  const auto out = [&](size_t axis) { return (xs[axis] + 2 * pad - (ws[axis] - 1) * dilation - 1) / stride + 1; };
  Tensor y(DType::kDouble, {xs[0], ws[0], out(2), out(3)});
  const Shape& ys = y.shape();
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t q = i % ys[3], p = i / ys[3] % ys[2], o = i / (ys[3] * ys[2]) % ys[1],
                  n = i / (ys[3] * ys[2] * ys[1]);
    double sum = 0;
    for (int64_t j = 0; j < ws[1] * ws[2] * ws[3]; ++j) {
      const int64_t kw = j % ws[3], kh = j / ws[3] % ws[2], c = j / (ws[3] * ws[2]);
      const int64_t h = p * stride - pad + kh * dilation, v = q * stride - pad + kw * dilation;
      if (h < 0 || h >= xs[2] || v < 0 || v >= xs[3]) continue;
      const int64_t channel = o / (ws[0] / group) * ws[1] + c;
      sum += x.at(((n * xs[1] + channel) * xs[2] + h) * xs[3] + v) * w.at(o * ws[1] * ws[2] * ws[3] + j);
    }
    y.set(i, sum);
  }
  return y;
}

class Convolutions : public testing::TestWithParam<DType> {
 protected:
  Tensor numbers(Shape shape, const std::vector<double>& values) const {
    return Tensor::of<double>(std::move(shape), values).cast(GetParam());
  }
  Tensor count_up(int64_t n) const {
    Tensor x(GetParam(), {1, 1, n});
    for (int64_t i = 0; i < n; ++i) x.set(i, static_cast<double>(i + 1));
    return x;
  }
};

TEST_P(Convolutions, ConvIsItsDefinition) {
  for (const int64_t group : {1, 2, 4}) {
    for (int form = 0; form < 8; ++form) {
      const int64_t stride = form & 1 ? 2 : 1, dilation = form & 2 ? 2 : 1, pad = form & 4 ? 1 : 0;
      const Tensor x = random_tensor(GetParam(), {2, 4, 7, 8}, 1),
                   w = random_tensor(GetParam(), {8, 4 / group, 3, 2}, 2);
      const Tensor y = run_node("Conv", {x, w},
                                {{"group", group},
                                 {"strides", Ints(2, stride)},
                                 {"dilations", Ints(2, dilation)},
                                 {"pads", Ints(4, pad)}})[0];
      EXPECT_LT(relative_error(y, plain_conv(x, w, group, stride, dilation, pad)), 1e-6) << group << " form " << form;
    }
  }
}

TEST_P(Convolutions, AutoPadPutsTheOddElementWhereItSays) {
  const Tensor x = count_up(9), w = numbers({1, 1, 4}, {1, 1, 1, 1});
  const Attrs upper = {{"auto_pad", "SAME_UPPER"}, {"strides", Ints{2}}, {"kernel_shape", Ints{4}}};
  const Attrs lower = {{"auto_pad", "SAME_LOWER"}, {"strides", Ints{2}}, {"kernel_shape", Ints{4}}};
  const auto expect = [&](const Tensor& y, const std::vector<double>& values) {
    EXPECT_LT(relative_error(y, numbers({1, 1, 5}, values)), 1e-6);
  };
  expect(run_node("Conv", {x, w}, upper)[0], {6, 14, 22, 30, 17});
  expect(run_node("Conv", {x, w}, lower)[0], {3, 10, 18, 26, 24});
  expect(run_node("MaxPool", {x}, upper)[0], {3, 5, 7, 9, 9});
  expect(run_node("MaxPool", {x}, lower)[0], {2, 4, 6, 8, 9});
  expect(run_node("AveragePool", {x}, upper)[0], {2, 3.5, 5.5, 7.5, 8.5});
  expect(run_node("AveragePool", {x}, lower)[0], {1.5, 2.5, 4.5, 6.5, 8});
}

TEST_P(Convolutions, ConvTransposeCutsWhereItsPaddingSays) {
  const Tensor x = numbers({1, 1, 4}, {1, 10, 100, 1000}), w = numbers({1, 1, 3}, {1, 2, 3});
  const auto run = [&](Attrs attrs) {
    attrs.emplace_back("strides", Ints{2});
    return run_node("ConvTranspose", {x, w}, attrs)[0];
  };
  const Tensor from_first = numbers({1, 1, 8}, {1, 2, 13, 20, 130, 200, 1300, 2000});
  const Tensor from_second = numbers({1, 1, 8}, {2, 13, 20, 130, 200, 1300, 2000, 3000});
  EXPECT_LT(relative_error(run({{"auto_pad", "SAME_UPPER"}}), from_first), 1e-6);
  EXPECT_LT(relative_error(run({{"auto_pad", "SAME_LOWER"}}), from_second), 1e-6);
  EXPECT_LT(relative_error(run({{"output_shape", Ints{8}}}), from_second), 1e-6);
  EXPECT_LT(relative_error(run({{"output_shape", Ints{8}}, {"output_padding", Ints{1}}}), from_second), 1e-6);
}

TEST_P(Convolutions, AveragesCountPaddingButNotWhatLiesBehindIt) {
  const Attrs windows = {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}, {"ceil_mode", 1}};
  Attrs include_pad = windows;
  include_pad.emplace_back("count_include_pad", 1);
  EXPECT_LT(relative_error(run_node("AveragePool", {count_up(6)}, windows)[0], numbers({1, 1, 4}, {1.5, 3, 5, 6})),
            1e-6);
  EXPECT_LT(relative_error(run_node("AveragePool", {count_up(6)}, include_pad)[0], numbers({1, 1, 4}, {1, 3, 5, 3})),
            1e-6);
}

TEST_P(Convolutions, CeilModeMakesNoWindowBehindTheInput) {
  const Tensor y =
      run_node("MaxPool", {count_up(9)}, {{"kernel_shape", Ints{2}}, {"strides", Ints{3}}, {"ceil_mode", 1}})[0];
  EXPECT_LT(relative_error(y, numbers({1, 1, 3}, {2, 5, 8})), 1e-6);
}

TEST_P(Convolutions, MaxPoolTellsWhereItsMaximaAre) {
  const auto outputs = run_node("MaxPool", {numbers({1, 2, 4}, {1, 3, 3, 2, 0, -1, -4, -2})},
                                {{"kernel_shape", Ints{2}}, {"strides", Ints{2}}}, 2);
  EXPECT_LT(relative_error(outputs[0], numbers({1, 2, 2}, {3, 3, 0, -2})), 1e-6);
  EXPECT_EQ(outputs[1].to_ints(), (Ints{1, 2, 4, 7}));
}

TEST(Conv, RefusesOperandsThatDoNotFit) {
  const auto x = [](Shape shape, DType dtype = DType::kFloat) { return random_tensor(dtype, std::move(shape)); };
  EXPECT_THROW(run_node("Conv", {x({1, 3, 5, 5}), x({4, 2, 3, 3})}), Error);
  EXPECT_THROW(run_node("Conv", {x({1, 3, 5, 5}), x({4, 3, 3, 3}), x({3})}), Error);
  EXPECT_THROW(run_node("Conv", {x({1, 4, 5, 5}), x({4, 2, 3, 3})}, {{"group", 3}}), Error);
  EXPECT_THROW(run_node("Conv", {x({1, 4, 5, 5}), x({4, 4, 3, 3})}, {{"group", 0}}), Error);
  EXPECT_THROW(run_node("Conv", {x({1, 3, 5, 5}, DType::kDouble), x({4, 3, 3, 3})}), Error);
}

// Scratch memory is NaN before a run (run_node.cc). oneDNN read it in some of these; float32 takes them now.
TEST(Conv, NoWeightGradientInBfloat16ReadsWhatNobodyWrote) {
  struct Case {
    int64_t width, kernel, stride, before, behind;
  };
  for (const Case& c : std::vector<Case>{{2, 2, 3, 1, 0},
                                         {2, 2, 4, 1, 0},
                                         {3, 3, 4, 2, 2},
                                         {1, 2, 5, 0, 1},
                                         {1, 5, 3, 3, 2},
                                         {1, 5, 5, 2, 3},
                                         {4, 2, 4, 0, 0},
                                         {5, 3, 2, 1, 1},
                                         {2, 2, 2, 1, 0}}) {
    const int64_t windows = (c.width + c.before + c.behind - c.kernel) / c.stride + 1;
    const Tensor x = random_tensor(DType::kFloat, {2, 3, c.width, 16}).cast(DType::kBFloat16);
    const Tensor dy = random_tensor(DType::kFloat, {2, 3, windows, 16}, 2).cast(DType::kBFloat16);
    const Tensor sizes = Tensor::ints({16, 16, 1, c.kernel});
    const Attrs attrs = {{"strides", Ints{1, c.stride}},
                         {"dilations", Ints{1, 1}},
                         {"pads", Ints{0, c.before, 0, c.behind}},
                         {"channels_last", 1}};
    const auto expected =
        run_node("ConvGradWeight", {x.cast(DType::kFloat), dy.cast(DType::kFloat), sizes}, attrs, 1, kDomain);
    try {
      const auto dw = run_node("ConvGradWeight", {x, dy, sizes}, attrs, 1, kDomain);
      EXPECT_LT(relative_error(dw[0], expected[0]), 1e-5) << c.width << ' ' << c.kernel << ' ' << c.stride;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no kernel"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Floats, Convolutions, testing::Values(DType::kFloat, DType::kDouble),
                         [](const auto& type) { return name(type.param); });

}  // namespace
}  // namespace onnx_train::convolutions_test
