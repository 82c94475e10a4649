// Convolutions of float32 images on AMX against the same in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/support/cpu_features.h"
#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train::cpu::amx_convolutions_test {
namespace {

#define SKIP_WITHOUT_AMX_CONVOLUTIONS() \
  if (isa() < Isa::kAmx) GTEST_SKIP() << "this CPU has no AMX: its convolutions are tested elsewhere"

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
      {{9, 4}, {3, 3}, 48, 64, 120},
      {{5, 7}, {3, 3}, 64, 100, 64, 2},
      {{8, 5}, {3, 2}, 32, 40, 64, 1, 2, 2},
      {{6, 6}, {1, 1}, 64, 64, 96, 1, 1, 0},
      {{7, 6}, {1, 1}, 32, 64, 96, 2, 1, 0},
      {{2, 3}, {5, 5}, 30, 32, 60, 1, 1, 2},
      {{2, 2}, {1, 1}, 32, 300, 64, 1, 1, 0},
      {{4, 4}, {3, 3}, 32, 320, 200},  // weights in parts
      {{11}, {4}, 32, 64, 64, 3, 1, 1},
      {{3, 4, 5}, {2, 3, 2}, 32, 32, 64},
      {{5, 5}, {2, 2}, 32, 32, 64, 3, 1, 0},  // elements that nothing meets
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

Shape channels_first(Shape shape) {
  std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
  return shape;
}

// The three directions of a case; inputs that are not images are the last ones.
struct Direction {
  std::string op;
  std::vector<Tensor> inputs;
  size_t images = 1;
  bool makes_images = true;
  int outputs = 1;
};

std::vector<Direction> directions(const Case& c) {
  const Tensor x = random(c.x(), 1), w = random(c.w(), 2), dy = random(c.y(), 3), bias = random({c.outs}, 4);
  return {{"Conv", {x, w}},
          {"Conv", {x, w, bias}},
          {"ConvGradInput", {dy, w, Tensor::ints(c.x())}},
          {"ConvGradWeight", {x, dy, Tensor::ints(c.w())}, 2, false, 2}};
}

std::vector<Tensor> run(const Direction& d, const Case& c) {
  Attrs attrs = c.attrs();
  attrs.emplace_back("channels_last", 1);
  return run_node(d.op, d.inputs, attrs, d.outputs, kDomain);
}

// The same, channels first, in float64 or float32.
std::vector<Tensor> run_plainly(const Direction& d, const Case& c, DType dtype) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < d.inputs.size(); ++i) {
    const Tensor& input = d.inputs[i];
    if (input.dtype() == DType::kInt64) {
      inputs.push_back(d.makes_images ? Tensor::ints(channels_first(c.x())) : input);
    } else {
      inputs.push_back(i < d.images ? transposed(input.cast(dtype), /*channels_last=*/false) : input.cast(dtype));
    }
  }
  auto outputs = run_node(d.op, inputs, c.attrs(), d.outputs, d.op == "Conv" ? "" : kDomain);
  if (d.makes_images) outputs[0] = transposed(outputs[0], /*channels_last=*/true);
  return outputs;
}

TEST(AmxConvolutions, TakeWhatFillsTheirPanels) {
  SKIP_WITHOUT_AMX_CONVOLUTIONS();
  for (const Case& c : cases()) {
    const size_t axes = c.image.size();
    const Windows windows{c.kernel, Shape(axes, c.stride), Shape(axes, c.dilation), Shape(axes, c.pad),
                          Shape(axes, c.pad)};
    EXPECT_EQ(prefers_amx({channels_first(c.x()), c.w(), channels_first(c.y()), 1, windows, true}), c.taken)
        << c.name();
  }
}

TEST(AmxConvolutions, AreAsCloseAsFloat32) {
  SKIP_WITHOUT_AMX_CONVOLUTIONS();
  for (const Case& c : cases()) {
    for (const Direction& d : directions(c)) {
      const auto actual = run(d, c), expected = run_plainly(d, c, DType::kDouble);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_LT(relative_error(actual[i], expected[i]), kTolerance) << d.op << c.name() << i;
      }
    }
  }
}

TEST(AmxConvolutions, ThreadsChangeNoBit) {
  SKIP_WITHOUT_AMX_CONVOLUTIONS();
  const int before = num_threads();
  for (const Case& c : cases()) {
    if (!c.taken) continue;
    for (const Direction& d : directions(c)) {
      set_num_threads(1);
      const Tensor expected = run(d, c)[0];
      for (const int threads : {2, 3, 7}) {
        set_num_threads(threads);
        const Tensor actual = run(d, c)[0];
        EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.bytes()), 0) << d.op << c.name() << threads;
      }
    }
  }
  set_num_threads(before);
}

// What is not finite reaches what it would reach without AMX, and nothing else; what is finite stays so.
TEST(AmxConvolutions, CarryInfinitiesAndNaN) {
  SKIP_WITHOUT_AMX_CONVOLUTIONS();
  using Limits = std::numeric_limits<float>;
  const Case c = {{5, 4}, {3, 3}, 64, 64, 96};
  const auto kind = [](double x) { return std::isnan(x) ? 2.0 : std::isinf(x) ? std::copysign(1.0, x) : 0.0; };
  for (Direction& d : directions(c)) {
    for (const float odd : {Limits::infinity(), Limits::quiet_NaN(), Limits::max()}) {
      for (const size_t input : {size_t{0}, size_t{1}}) {
        if (d.inputs[input].dtype() == DType::kInt64) continue;
        const Tensor usual = d.inputs[input];
        d.inputs[input] = usual.clone();
        d.inputs[input].set(usual.size() / 2, odd);
        const Tensor actual = run(d, c)[0], expected = run_plainly(d, c, DType::kFloat)[0];
        d.inputs[input] = usual;
        int64_t wrong = 0;
        for (int64_t i = 0; i < actual.size(); ++i) {
          const double y = actual.at(i), z = expected.at(i);
          wrong += kind(y) != kind(z) || (kind(z) == 0 && std::abs(y - z) > 1e-5 * std::max(10.0, std::abs(z)));
        }
        EXPECT_EQ(wrong, 0) << d.op << " input " << input << " " << odd;
      }
    }
  }
}

}  // namespace
}  // namespace onnx_train::cpu::amx_convolutions_test
