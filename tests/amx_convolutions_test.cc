// Convolutions of float32 images on AMX against the same in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cpu/convolutions.h"
#include "kernels/cpu/products.h"
#include "kernels/device.h"
#include "onnx_passes/functions/functions.h"
#include "tests/run_node.h"

namespace onnx_train::cpu {
namespace {

#define SKIP_WITHOUT_AMX() \
  if (!has_amx()) GTEST_SKIP() << "this CPU has no AMX: its convolutions are tested elsewhere"

constexpr double kTolerance = 1.5e-6;  // sums of 1000 products in float32 are off by 1e-6

struct Case {
  Shape image, kernel;  // spatial
  int64_t batch, ins, outs;
  int64_t stride = 1, dilation = 1, pad = 1;
  bool taken = true;  // by AMX

  Shape windows() const {
    Shape counts;
    for (size_t i = 0; i < image.size(); ++i) {
      counts.push_back((image[i] + 2 * pad - dilation * (kernel[i] - 1) - 1) / stride + 1);
    }
    return counts;
  }
  Shape images(const Shape& points, int64_t channels) const {
    Shape shape = {batch};
    shape.insert(shape.end(), points.begin(), points.end());
    shape.push_back(channels);
    return shape;
  }
  Shape x() const { return images(image, ins); }
  Shape y() const { return images(windows(), outs); }
  Shape w() const {
    Shape shape = {outs, ins};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    return shape;
  }
  Attrs attrs() const {
    const size_t axes = image.size();
    return {{"strides", Shape(axes, stride)}, {"dilations", Shape(axes, dilation)}, {"pads", Shape(2 * axes, pad)}};
  }
  std::string name() const { return to_string(x()) + " x " + to_string(w()) + " to " + to_string(y()); }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{8, 8}, {3, 3}, 32, 32, 32},
      {{9, 4}, {3, 3}, 48, 64, 100},
      {{5, 7}, {3, 3}, 64, 100, 64, 2},
      {{8, 5}, {3, 2}, 32, 40, 64, 1, 2, 2},
      {{6, 6}, {1, 1}, 64, 64, 96, 1, 1, 0},
      {{7, 6}, {1, 1}, 32, 64, 64, 2, 1, 0},
      {{2, 3}, {5, 5}, 30, 32, 60, 1, 1, 2},
      {{1, 1}, {1, 1}, 32, 300, 64, 1, 1, 0},
      {{4, 4}, {3, 3}, 32, 320, 200},  // weights in parts
      {{11}, {4}, 32, 64, 32, 3, 1, 1},
      {{3, 4, 5}, {2, 3, 2}, 32, 32, 64},
      {{5, 5}, {2, 2}, 32, 32, 32, 3, 1, 0},  // elements that nothing meets
      {{6, 6}, {3, 3}, 32, 33, 64, 1, 1, 1, /*taken=*/false},
      {{6, 6}, {3, 3}, 16, 64, 64, 1, 1, 1, /*taken=*/false},
  };
  return all;
}

Tensor random(const Shape& shape, unsigned seed) { return random_tensor(DType::kFloat, shape, seed); }

Tensor transposed(const Tensor& tensor, bool channels_last) {
  Shape order(tensor.shape().size());
  std::iota(order.begin(), order.end(), 0);
  const auto first = order.begin() + 1, last = order.end() - 1;
  channels_last ? std::rotate(first, first + 1, order.end()) : std::rotate(first, last, order.end());
  return run_node("Transpose", {tensor}, {{"perm", order}})[0];
}

Tensor exact(const Tensor& images) { return transposed(images.cast(DType::kDouble), /*channels_last=*/false); }

// The three directions, by name, and their inputs.
struct Direction {
  const char* op;
  std::vector<Tensor> inputs;
};

std::vector<Direction> directions(const Case& c) {
  const Tensor x = random(c.x(), 1), w = random(c.w(), 2), dy = random(c.y(), 3);
  return {{"ChannelsLastConv", {x, w}},
          {"ChannelsLastConvGradInput", {dy, w, Tensor::ints(c.x())}},
          {"ChannelsLastConvGradWeight", {x, dy, Tensor::ints(c.w())}}};
}

Tensor run(const Direction& direction, const Case& c) {
  return run_node(direction.op, direction.inputs, c.attrs(), 1, kDomain)[0];
}

TEST(AmxConvolutions, Forward) {
  SKIP_WITHOUT_AMX();
  for (const Case& c : cases()) {
    const Tensor x = random(c.x(), 1), w = random(c.w(), 2), bias = random({c.outs}, 3);
    for (const bool with_bias : {false, true}) {
      std::vector<Tensor> inputs = {x, w}, exact_inputs = {exact(x), w.cast(DType::kDouble)};
      if (with_bias) {
        inputs.push_back(bias);
        exact_inputs.push_back(bias.cast(DType::kDouble));
      }
      const Tensor y = run_node("ChannelsLastConv", inputs, c.attrs(), 1, kDomain)[0];
      const Tensor expected = transposed(run_node("Conv", exact_inputs, c.attrs())[0], /*channels_last=*/true);
      EXPECT_LT(relative_error(y, expected), kTolerance) << c.name() << with_bias;
    }
  }
}

TEST(AmxConvolutions, InputGradient) {
  SKIP_WITHOUT_AMX();
  for (const Case& c : cases()) {
    const Tensor dy = random(c.y(), 1), w = random(c.w(), 2);
    const Tensor dx = run_node("ChannelsLastConvGradInput", {dy, w, Tensor::ints(c.x())}, c.attrs(), 1, kDomain)[0];
    Shape first = c.x();
    std::rotate(first.begin() + 1, first.end() - 1, first.end());
    const Tensor expected =
        run_node("ConvGradInput", {exact(dy), w.cast(DType::kDouble), Tensor::ints(first)}, c.attrs(), 1, kDomain)[0];
    EXPECT_LT(relative_error(dx, transposed(expected, /*channels_last=*/true)), kTolerance) << c.name();
  }
}

TEST(AmxConvolutions, WeightGradient) {
  SKIP_WITHOUT_AMX();
  for (const Case& c : cases()) {
    const Tensor x = random(c.x(), 1), dy = random(c.y(), 2), w = Tensor::ints(c.w());
    const auto dw = run_node("ChannelsLastConvGradWeight", {x, dy, w}, c.attrs(), 2, kDomain);
    const auto expected = run_node("ConvGradWeight", {exact(x), exact(dy), w}, c.attrs(), 2, kDomain);
    for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(dw[i], expected[i]), kTolerance) << c.name() << i;
  }
}

TEST(AmxConvolutions, ThreadsChangeNoBit) {
  SKIP_WITHOUT_AMX();
  const int before = num_threads();
  for (const Case& c : cases()) {
    if (!c.taken) continue;
    for (const Direction& direction : directions(c)) {
      set_num_threads(1);
      const Tensor expected = run(direction, c);
      for (const int threads : {2, 3, 5}) {
        set_num_threads(threads);
        const Tensor actual = run(direction, c);
        EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.bytes()), 0)
            << direction.op << c.name() << threads;
      }
    }
  }
  set_num_threads(before);
}

// What is not finite reaches what it would reach without AMX, and nothing else; what is finite stays so.
TEST(AmxConvolutions, CarriesInfinitiesAndNaN) {
  SKIP_WITHOUT_AMX();
  const Case c = {{5, 4}, {3, 3}, 64, 64, 64};
  const auto magnitude = [](double x) { return std::isnan(x) ? 2 : std::isinf(x) ? std::copysign(1, x) : 0; };
  for (Direction& direction : directions(c)) {
    const Tensor usual = run(direction, c);
    for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max()}) {
      for (const size_t input : {size_t{0}, size_t{1}}) {
        if (direction.inputs[input].dtype() != DType::kFloat) continue;
        Direction with = direction;
        with.inputs[input] = with.inputs[input].cast(DType::kFloat);
        with.inputs[input].set(with.inputs[input].size() / 2, odd);
        const Tensor actual = run(with, c);
        // As the same sums in plain float32 say.
        const Tensor expected = plain(with, c);
        for (int64_t i = 0; i < actual.size(); ++i) {
          ASSERT_EQ(magnitude(actual.at(i)), magnitude(expected.at(i))) << direction.op << input << odd << i;
          if (magnitude(expected.at(i)) == 0) {
            ASSERT_NEAR(actual.at(i), expected.at(i), 1e-5 * std::max(10.0, std::abs(expected.at(i))));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onnx_train::cpu
