// Product kernels against the definition, written as loops over indices.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/support/cpu_features.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "tests/support/run_node.h"

namespace onnx_train::products_test {
namespace {

// out[i][m][n] = sum over k of a[i][m][k] b[i][k][n]; a is [batch, m, k], b is [batch or 1, k, n].
Tensor plain_matmul(const Tensor& a, const Tensor& b) {
  const int64_t batch = a.shape()[0], m = a.shape()[1], k = a.shape()[2], n = b.shape()[2];
  Tensor y(DType::kDouble, {batch, m, n});
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t item = i / (m * n), row = i / n % m, column = i % n;
    double sum = 0;
    for (int64_t l = 0; l < k; ++l) {
      sum += a.at((item * m + row) * k + l) * b.at((b.shape()[0] == 1 ? 0 : item * k * n) + l * n + column);
    }
    y.set(i, sum);
  }
  return y;
}

Tensor transposed(const Tensor& x) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  Tensor y(x.dtype(), {columns, rows});
  for (int64_t i = 0; i < x.size(); ++i) y.set(i % columns * rows + i / columns, x.at(i));
  return y;
}

class Products : public testing::TestWithParam<DType> {};

TEST_P(Products, MatMulOfBatches) {
  for (const int64_t batch_b : {1, 3}) {
    const Tensor a = random_tensor(GetParam(), {3, 17, 33}, 1), b = random_tensor(GetParam(), {batch_b, 33, 20}, 2);
    EXPECT_LT(relative_error(run_node("MatMul", {a, b})[0], plain_matmul(a, b)), 1e-6) << batch_b;
  }
}

TEST_P(Products, MatMulBroadcastsBothBatches) {
  const Tensor a = random_tensor(GetParam(), {2, 1, 4, 5}, 1), b = random_tensor(GetParam(), {1, 3, 5, 6}, 2);
  const Tensor y = run_node("MatMul", {a, b})[0];
  ASSERT_EQ(y.shape(), (Shape{2, 3, 4, 6}));
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t n = i % 6, m = i / 6 % 4, item_b = i / 24 % 3, item_a = i / 72;
    double sum = 0;
    for (int64_t k = 0; k < 5; ++k) sum += a.at((item_a * 4 + m) * 5 + k) * b.at((item_b * 5 + k) * 6 + n);
    EXPECT_NEAR(y.at(i), sum, 1e-6);
  }
}

TEST_P(Products, MatMulOfVectors) {
  const Tensor a = random_tensor(GetParam(), {5}, 1), b = random_tensor(GetParam(), {5}, 2);
  const Tensor expected = plain_matmul(a.reshaped({1, 1, 5}), b.reshaped({1, 5, 1})).reshaped({});
  EXPECT_LT(relative_error(run_node("MatMul", {a, b})[0], expected), 1e-6);
}

TEST_P(Products, EmptySumsAreZero) {
  const Tensor y = run_node("MatMul", {Tensor(GetParam(), {4, 0}), Tensor(GetParam(), {0, 3})})[0];
  EXPECT_EQ(relative_error(y, Tensor(GetParam(), {4, 3})), 0);
  EXPECT_EQ(run_node("MatMul", {Tensor(GetParam(), {0, 4}), Tensor(GetParam(), {4, 3})})[0].shape(), (Shape{0, 3}));
}

TEST_P(Products, GemmInEveryForm) {
  const int64_t m = 7, k = 5, n = 9;
  for (const Shape& c_shape : std::vector<Shape>{{}, {1}, {n}, {1, n}, {m, 1}, {m, n}, {1, 1}}) {
    for (int form = 0; form < 16; ++form) {
      const bool trans_a = form & 1, trans_b = form & 2;
      const float alpha = form & 4 ? 0.5f : 1, beta = form & 8 ? -2 : 1;
      const Tensor a = random_tensor(GetParam(), {m, k}, 1), b = random_tensor(GetParam(), {k, n}, 2);
      const Tensor c = random_tensor(GetParam(), c_shape, 3);
      Tensor expected = plain_matmul(a.reshaped({1, m, k}), b.reshaped({1, k, n})).reshaped({m, n});
      for (int64_t i = 0; i < m * n; ++i) {
        const int64_t row = c_shape.size() == 2 && c_shape[0] == m ? i / n : 0;
        const int64_t columns = c_shape.empty() ? 1 : c_shape.back();
        expected.set(i, alpha * expected.at(i) + beta * c.at(row * columns + (columns == n ? i % n : 0)));
      }
      const Tensor y = run_node("Gemm", {trans_a ? transposed(a) : a, trans_b ? transposed(b) : b, c},
                                {{"transA", trans_a}, {"transB", trans_b}, {"alpha", alpha}, {"beta", beta}})[0];
      EXPECT_LT(relative_error(y, expected), 1e-6) << to_string(c_shape) << " form " << form;
    }
  }
}

TEST_P(Products, GemmOverNothingIsC) {
  const Tensor c = random_tensor(GetParam(), {3}, 3);
  const Tensor y = run_node("Gemm", {Tensor(GetParam(), {2, 0}), Tensor(GetParam(), {0, 3}), c})[0];
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.at(i), c.at(i % 3));
}

// As large as it takes for oneDNN's general implementation (float_products.cc), and a little more.
TEST(LargeProducts, AreThoseOfFloat64) {
  const int64_t m = 66, k = 2053, n = 2100;
  const Tensor a = random_tensor(DType::kFloat, {m, k}, 1), b = random_tensor(DType::kFloat, {k, n}, 2);
  const Tensor wide_a = a.cast(DType::kDouble), wide_b = b.cast(DType::kDouble);
  for (const Shape& c_shape : {Shape{1}, Shape{n}, Shape{m, n}}) {
    const Tensor c = random_tensor(DType::kFloat, c_shape, 3);
    const Tensor expected = run_node("Gemm", {wide_a, wide_b, c.cast(DType::kDouble)})[0];
    EXPECT_LT(relative_error(run_node("Gemm", {a, b, c})[0], expected), 1e-6) << to_string(c_shape);
    EXPECT_LT(relative_error(run_node("Gemm", {transposed(a), b, c}, {{"transA", 1}})[0], expected), 1e-6);
  }
  const Tensor half = run_node("Gemm", {wide_a, wide_b}, {{"alpha", 0.5f}})[0];
  EXPECT_LT(relative_error(run_node("Gemm", {a, b}, {{"alpha", 0.5f}})[0], half), 1e-6);
}

TEST(LargeProducts, OfBfloat16AreThoseOfFloat64) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: the function's body runs";
  for (const Shape& mkn : {Shape{513, 40, 2100}, Shape{513, 2053, 257}}) {
    const Tensor a = random_tensor(DType::kFloat, {mkn[0], mkn[1]}, 1).cast(DType::kBFloat16);
    const Tensor b = random_tensor(DType::kFloat, {mkn[1], mkn[2]}, 2).cast(DType::kBFloat16);
    const Tensor expected = run_node("Gemm", {a.cast(DType::kDouble), b.cast(DType::kDouble)})[0];
    EXPECT_LT(relative_error(run_node("Gemm", {a, b}, {}, 1, kDomain)[0], expected), 1e-6) << to_string(mkn);
  }
}

// Many rows that meet a small operand: it is packed, also where the sums go on from block to block.
TEST(LargeProducts, PackASmallOperand) {
  for (const Shape& kn : {Shape{70, 90}, Shape{1, 1}, Shape{2053, 257}}) {
    const int64_t m = 1030, k = kn[0], n = kn[1];
    const double tolerance = 0x1p-23 * std::sqrt(k);  // roundings add up like steps of a random walk
    const Tensor a = random_tensor(DType::kFloat, {m, k}, 1), b = random_tensor(DType::kFloat, {k, n}, 2);
    for (const Shape& c_shape : {Shape{n}, Shape{m, n}}) {
      const Tensor c = random_tensor(DType::kFloat, c_shape, 3);
      const Tensor expected =
          run_node("Gemm", {a.cast(DType::kDouble), b.cast(DType::kDouble), c.cast(DType::kDouble)})[0];
      const auto error = [&](const Tensor& from_a, const Tensor& from_b, const Attrs& attrs) {
        return relative_error(run_node("Gemm", {from_a, from_b, c}, attrs)[0], expected);
      };
      EXPECT_LT(error(a, b, {}), tolerance) << to_string(kn) << to_string(c_shape);
      EXPECT_LT(error(transposed(a), b, {{"transA", 1}}), tolerance) << to_string(kn) << to_string(c_shape);
      EXPECT_LT(error(a, transposed(b), {{"transB", 1}}), tolerance) << to_string(kn) << to_string(c_shape);
    }
  }
}

TEST(LargeProducts, OfBfloat16PackASmallOperand) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: the function's body runs";
  for (const Shape& kn : {Shape{70, 90}, Shape{1, 1}, Shape{2053, 257}}) {
    const Tensor a = random_tensor(DType::kFloat, {1030, kn[0]}, 1).cast(DType::kBFloat16);
    const Tensor b = random_tensor(DType::kFloat, kn, 2).cast(DType::kBFloat16);
    const Tensor expected = run_node("Gemm", {a.cast(DType::kDouble), b.cast(DType::kDouble)})[0];
    const Tensor found = run_node("Gemm", {a, b}, {}, 1, kDomain)[0];
    EXPECT_LT(relative_error(found, expected), 0x1p-23 * std::sqrt(kn[0])) << to_string(kn);
  }
}

INSTANTIATE_TEST_SUITE_P(Floats, Products, testing::Values(DType::kFloat, DType::kDouble),
                         [](const auto& type) { return name(type.param); });

TEST(Gemm, RefusesOperandsThatDoNotFit) {
  const auto x = [](Shape shape) { return random_tensor(DType::kFloat, std::move(shape)); };
  EXPECT_THROW(run_node("Gemm", {x({2, 3}), x({4, 5})}), Error);
  EXPECT_THROW(run_node("Gemm", {x({2, 3}), x({3, 5}), x({4})}), Error);
}

TEST(IntegerProducts, AreExact) {
  const Tensor a = Tensor::of<int64_t>({2, 2}, {1, 2, 3, int64_t{1} << 60}), b = Tensor::of<int64_t>({2, 1}, {5, 7});
  EXPECT_EQ(run_node("MatMul", {a, b})[0].to_ints(), (std::vector<int64_t>{19, 15 + 7 * (int64_t{1} << 60)}));
}

}  // namespace
}  // namespace onnx_train::products_test
