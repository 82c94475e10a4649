// Element-wise kernels where operators differ from what C++ does: broadcasting in every position, bounds of types,
// NaN, division by zero, ties.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "onnx_passes/ir/half.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::elementwise_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<double> values(const Tensor& tensor) {
  std::vector<double> all;
  for (int64_t i = 0; i < tensor.size(); ++i) all.push_back(tensor.at(i));
  return all;
}

using Values = std::vector<double>;

// The element of `operand` that element `index` of a tensor of shape `out` meets.
double broadcast_at(const Tensor& operand, const Shape& out, int64_t index) {
  int64_t offset = 0, stride = 1;
  const size_t extra = out.size() - operand.shape().size();
  for (size_t d = out.size(); d-- > extra;) {
    const int64_t size = operand.shape()[d - extra];
    if (size != 1) offset += index % out[d] * stride;
    stride *= size;
    index /= out[d];
  }
  return operand.at(offset);
}

TEST(Elementwise, BroadcastsInEveryPosition) {
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{}, {}},
      {{2, 3}, {}},
      {{}, {2, 3}},
      {{2, 3, 4}, {4}},
      {{4}, {2, 3, 4}},
      {{2, 3, 4}, {3, 1}},
      {{2, 1, 4}, {1, 3, 1}},
      {{2, 3, 4}, {2, 1, 1}},
      {{1, 1, 5}, {1, 4, 1}},
      {{0, 3}, {1, 3}},
      {{3, 1}, {0}},
      {{2, 1, 3, 1, 2}, {1, 4, 1, 5, 1}},
  };
  for (const auto& [a_shape, b_shape] : shapes) {
    for (const DType dtype : {DType::kFloat, DType::kDouble, DType::kInt64}) {
      const Tensor a = random_tensor(DType::kDouble, a_shape, 1), b = random_tensor(DType::kDouble, b_shape, 2);
      Tensor scaled_a = a.clone(), scaled_b = b.clone();
      for (int64_t i = 0; i < a.size(); ++i) scaled_a.set(i, std::round(a.at(i) * 100));
      for (int64_t i = 0; i < b.size(); ++i) scaled_b.set(i, std::round(b.at(i) * 100));
      const Tensor y = run_node("Sub", {scaled_a.cast(dtype), scaled_b.cast(dtype)})[0];
      ASSERT_EQ(y.shape(), broadcast(a_shape, b_shape));
      for (int64_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(y.at(i), broadcast_at(scaled_a, y.shape(), i) - broadcast_at(scaled_b, y.shape(), i))
            << to_string(a_shape) << " " << to_string(b_shape);
      }
    }
  }
}

TEST(Elementwise, LargeTensorsAreSplitAmongThreads) {
  const Tensor a = random_tensor(DType::kFloat, {70, 3, 500}, 1), b = random_tensor(DType::kFloat, {3, 1}, 2);
  const Tensor y = run_node("Mul", {a, b})[0];
  for (int64_t i = 0; i < y.size(); ++i) {
    ASSERT_FLOAT_EQ(static_cast<float>(y.at(i)), static_cast<float>(a.at(i) * b.at(i / 500 % 3)));
  }
}

TEST(Elementwise, IntegersNeverTrap) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  const Tensor a = Tensor::of<int32_t>({5}, {7, -7, 5, kMin, kMin}), b = Tensor::of<int32_t>({5}, {2, 2, 0, -1, 1});
  EXPECT_EQ(values(run_node("Div", {a, b})[0]), (Values{3, -3, 0, kMin, kMin}));
  EXPECT_EQ(values(run_node("Mod", {a, b})[0]), (Values{1, 1, 0, 0, 0}));
  EXPECT_EQ(values(run_node("Mod", {a, b}, {{"fmod", 1}})[0]), (Values{1, -1, 0, 0, 0}));
  EXPECT_EQ(run_node("Neg", {a})[0].at(3), kMin);
}

TEST(Elementwise, NanPassesThroughSelections) {
  const Tensor x = Tensor::of<float>({3}, {kNaN, 1, -1}), y = Tensor::of<float>({3}, {0, kNaN, 0});
  for (const char* op : {"Max", "Min"}) {
    const Tensor z = run_node(op, {x, y})[0];
    EXPECT_TRUE(std::isnan(z.at(0)) && std::isnan(z.at(1)) && !std::isnan(z.at(2))) << op;
  }
  for (const char* op : {"Relu", "Sign", "Tanh", "Sigmoid", "Erf", "Gelu", "HardSigmoid", "Softplus"}) {
    EXPECT_TRUE(std::isnan(run_node(op, {x})[0].at(0))) << op;
  }
  EXPECT_TRUE(std::isnan(run_node("Clip", {x, Tensor::scalar(0.f), Tensor::scalar(1.f)})[0].at(0)));
  EXPECT_EQ(values(run_node("IsNaN", {x})[0]), (Values{1, 0, 0}));
  EXPECT_EQ(values(run_node("IsInf", {Tensor::of<float>({3}, {kInf, -kInf, 0})}, {{"detect_negative", 0}})[0]),
            (Values{1, 0, 0}));
}

TEST(Elementwise, VariadicOperatorsTakeAnyNumber) {
  const Tensor a = Tensor::of<float>({2, 1}, {1, 2}), b = Tensor::of<float>({3}, {0, 3, 6}), c = Tensor::scalar(2.f);
  EXPECT_EQ(values(run_node("Sum", {a})[0]), (Values{1, 2}));
  EXPECT_EQ(values(run_node("Sum", {a, b, c})[0]), (Values{3, 6, 9, 4, 7, 10}));
  EXPECT_EQ(values(run_node("Mean", {a, b, c})[0])[5], static_cast<double>(10 * (1.0f / 3)));
  EXPECT_EQ(values(run_node("Max", {c, a, b})[0]), (Values{2, 3, 6, 2, 3, 6}));
  EXPECT_EQ(values(run_node("Sum", {c, a, b})[0]), (Values{3, 6, 9, 4, 7, 10}));
}

TEST(Elementwise, AnOperandReadTwiceIsNotWrittenOver) {
  Session session(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[2] y) { r = Neg(x)  s = Sum(r, x, r)  y = Neg(s) })"));
  EXPECT_EQ(values(session.run("predict", {{"x", Tensor::of<float>({2}, {1, 2})}}).at("y")), (Values{1, 2}));
}

TEST(Elementwise, ComparisonsOfEveryType) {
  for (const DType dtype : {DType::kFloat, DType::kDouble, DType::kInt8, DType::kInt64, DType::kUint16}) {
    const Tensor a = Tensor::of<double>({2, 1}, {1, 3}).cast(dtype), b = Tensor::of<double>({3}, {0, 1, 4}).cast(dtype);
    EXPECT_EQ(values(run_node("Equal", {a, b})[0]), (Values{0, 1, 0, 0, 0, 0}));
    EXPECT_EQ(values(run_node("Less", {a, b})[0]), (Values{0, 0, 1, 0, 0, 1}));
    EXPECT_EQ(values(run_node("LessOrEqual", {a, b})[0]), (Values{0, 1, 1, 0, 0, 1}));
    EXPECT_EQ(values(run_node("Greater", {a, b})[0]), (Values{1, 0, 0, 1, 1, 0}));
    EXPECT_EQ(values(run_node("GreaterOrEqual", {a, b})[0]), (Values{1, 1, 0, 1, 1, 0}));
  }
  const Tensor p = Tensor::of<bool>({2, 1}, {true, false}), q = Tensor::of<bool>({2}, {true, false});
  EXPECT_EQ(values(run_node("Equal", {p, q})[0]), (Values{1, 0, 0, 1}));
  EXPECT_EQ(values(run_node("And", {p, q})[0]), (Values{1, 0, 0, 0}));
  EXPECT_EQ(values(run_node("Or", {p, q})[0]), (Values{1, 1, 1, 0}));
  EXPECT_EQ(values(run_node("Xor", {p, q})[0]), (Values{0, 1, 1, 0}));
  EXPECT_EQ(values(run_node("Not", {q})[0]), (Values{0, 1}));
}

TEST(Elementwise, ClipBounds) {
  const Tensor x = Tensor::of<int64_t>({4}, {-5, 0, 3, 9});
  const Tensor low = Tensor::scalar<int64_t>(-1), high = Tensor::scalar<int64_t>(4);
  EXPECT_EQ(values(run_node("Clip", {x})[0]), values(x));
  EXPECT_EQ(values(run_node("Clip", {x, low})[0]), (Values{-1, 0, 3, 9}));
  EXPECT_EQ(values(run_node("Clip", {x, Tensor(), high})[0]), (Values{-5, 0, 3, 4}));
  EXPECT_EQ(values(run_node("Clip", {x, high, low})[0]), (Values{-1, -1, -1, -1}));
}

TEST(Elementwise, PowTypes) {
  const Tensor x = Tensor::of<float>({3}, {-2, 0.5, 3});
  EXPECT_EQ(values(run_node("Pow", {x, Tensor::scalar<int64_t>(2)})[0]), (Values{4, 0.25, 9}));
  EXPECT_EQ(values(run_node("Pow", {x, Tensor::scalar(3.0)})[0]), (Values{-8, 0.125, 27}));
  EXPECT_EQ(values(run_node("Pow", {x, Tensor::of<float>({3}, {0, -1, 1})})[0]), (Values{1, 2, 3}));
  const Tensor n = Tensor::of<int32_t>({3}, {-1, 2, 3});
  EXPECT_EQ(values(run_node("Pow", {n, Tensor::of<int32_t>({3}, {-3, 10, 0})})[0]), (Values{-1, 1024, 1}));
}

TEST(Elementwise, BitsOfUnsignedIntegers) {
  const Tensor x = Tensor::of<uint64_t>({2}, {0xffffffffffffffffu, 6}), n = Tensor::of<uint64_t>({2}, {60, 64});
  EXPECT_EQ(run_node("BitShift", {x, n}, {{"direction", "RIGHT"}})[0].data<uint64_t>()[0], 15u);
  EXPECT_EQ(run_node("BitShift", {x, n}, {{"direction", "LEFT"}})[0].data<uint64_t>()[0], 0xf000000000000000u);
  EXPECT_EQ(run_node("BitShift", {x, n}, {{"direction", "LEFT"}})[0].data<uint64_t>()[1], 0u);
  const Tensor negative = Tensor::of<int8_t>({3}, {-128, -3, -3}), by = Tensor::of<int8_t>({3}, {1, 8, -1});
  EXPECT_EQ(values(run_node("BitShift", {negative, by}, {{"direction", "RIGHT"}})[0]), (Values{-64, -1, -1}));
  EXPECT_EQ(run_node("BitwiseXor", {x, n})[0].data<uint64_t>()[1], 70u);
  EXPECT_EQ(values(run_node("BitwiseNot", {Tensor::of<int8_t>({2}, {0, 5})})[0]), (Values{-1, -6}));
}

TEST(Elementwise, WhereOfEveryPattern) {
  const Tensor c = Tensor::of<bool>({2, 1}, {true, false});
  const Tensor a = Tensor::of<double>({3}, {1, 2, 3}), b = Tensor::of<double>({2, 3}, {4, 5, 6, 7, 8, 9});
  EXPECT_EQ(values(run_node("Where", {c, a, b})[0]), (Values{1, 2, 3, 7, 8, 9}));
  EXPECT_EQ(values(run_node("Where", {c, b, Tensor::scalar(0.0)})[0]), (Values{4, 5, 6, 0, 0, 0}));
  EXPECT_EQ(values(run_node("Where", {c, Tensor::scalar(true), Tensor::scalar(false)})[0]), (Values{1, 0}));
}

Tensor cast(const Tensor& x, DType to) { return run_node("Cast", {x}, {{"to", static_cast<int>(to)}})[0]; }

TEST(Elementwise, CastsOfEveryPair) {
  const DType types[] = {DType::kFloat, DType::kDouble, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                         DType::kUint8, DType::kInt16,  DType::kUint16,  DType::kInt32,    DType::kUint32,
                         DType::kInt64, DType::kUint64, DType::kBool};
  for (const DType from : types) {
    for (const DType to : types) {
      const Tensor x = Tensor::of<double>({3}, {0, 1, 100}).cast(from);
      const Tensor y = cast(x, to);
      ASSERT_EQ(y.dtype(), to);
      for (int64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(y.at(i), to == DType::kBool ? x.at(i) != 0 : x.at(i)) << name(from) << " to " << name(to);
      }
    }
  }
}

TEST(Elementwise, CastsAtTheEdges) {
  const Tensor x = Tensor::of<float>({6}, {2.9f, -2.9f, 3e9f, -3e9f, kNaN, kInf});
  constexpr double kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(values(cast(x, DType::kInt32)), (Values{2, -2, kMax, kMin, 0, kMax}));
  EXPECT_EQ(cast(x, DType::kInt64).data<int64_t>()[5], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(values(cast(Tensor::of<int32_t>({2}, {-1, 257}), DType::kUint8)), (Values{255, 1}));
  EXPECT_EQ(values(cast(Tensor::of<float>({2}, {0.5f, kNaN}), DType::kBool)), (Values{1, 1}));
  EXPECT_EQ(values(cast(Tensor::of<float>({2}, {1.00390625f, 1.01171875f}), DType::kBFloat16)), (Values{1, 1.015625}));
  EXPECT_EQ(cast(Tensor::scalar(1e6f), DType::kFloat16).at(0), static_cast<double>(kInf));
}

class Softmax : public testing::TestWithParam<DType> {};

TEST_P(Softmax, AlongEveryAxis) {
  const Tensor x = random_tensor(GetParam(), {6, 50, 120}, 1);  // enough for two threads
  const int64_t strides[] = {6000, 120, 1}, sizes[] = {6, 50, 120};
  for (int axis = 0; axis < 3; ++axis) {
    const Tensor y = run_node("Softmax", {x}, {{"axis", axis}})[0],
                 l = run_node("LogSoftmax", {x}, {{"axis", axis}})[0];
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t stride = strides[axis], first = i - i / stride % sizes[axis] * stride;
      double sum = 0;
      for (int64_t k = 0; k < sizes[axis]; ++k) sum += std::exp(x.at(first + k * stride));
      ASSERT_NEAR(y.at(i), std::exp(x.at(i)) / sum, 1e-6) << axis;
      ASSERT_NEAR(l.at(i), x.at(i) - std::log(sum), 1e-6) << axis;
    }
  }
}

TEST_P(Softmax, LargeAndEmptyInputs) {
  const Tensor x = Tensor::of<double>({1, 3}, {1e4, 1e4, -1e4}).cast(GetParam());
  EXPECT_EQ(values(run_node("Softmax", {x})[0]), (Values{0.5, 0.5, 0}));
  EXPECT_EQ(run_node("Softmax", {Tensor(GetParam(), {0, 3})})[0].shape(), (Shape{0, 3}));
  EXPECT_EQ(run_node("Softmax", {Tensor(GetParam(), {3, 0})})[0].shape(), (Shape{3, 0}));
  EXPECT_EQ(run_node("Softmax", {Tensor(GetParam(), {3, 0, 2})}, {{"axis", 1}})[0].shape(), (Shape{3, 0, 2}));
}

INSTANTIATE_TEST_SUITE_P(Elementwise, Softmax, testing::Values(DType::kFloat, DType::kDouble),
                         [](const auto& dtype) { return name(dtype.param); });

}  // namespace
}  // namespace onnx_train::elementwise_test
