// float32 products on AMX against the definition, and against sums in float32.
#include "kernels/cpu/products/amx_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/cpu/support/cpu_features.h"
#include "onnx_passes/functions/functions.h"
#include "tests/support/run_node.h"

namespace onnx_train::cpu::amx_product_test {
namespace {

#define SKIP_WITHOUT_AMX() \
  if (isa() < Isa::kAmx) GTEST_SKIP() << "this CPU has no AMX: oneDNN makes all float32 products"

using Numbers = std::vector<float>;

Numbers random_numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Numbers numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

std::vector<BFloat16> rounded(const Numbers& numbers) {
  std::vector<BFloat16> narrow;
  for (const float x : numbers) narrow.push_back(BFloat16(x));
  return narrow;
}

Numbers widened(const std::vector<BFloat16>& numbers) {
  Numbers wide;
  for (const BFloat16 x : numbers) wide.push_back(static_cast<float>(x));
  return wide;
}

Product product_of(int64_t m, int64_t k, int64_t n, bool trans_a = false, bool trans_b = false) {
  return {row_major_matrices({}, m, k, trans_a),
          row_major_matrices({}, k, n, trans_b),
          row_major_matrices({}, m, n),
          m,
          n,
          k};
}

float& at(Numbers& numbers, const Matrices& layout, int64_t row, int64_t column) {
  return numbers[static_cast<size_t>(row * layout.row_stride + column * layout.column_stride)];
}

Numbers run(const Product& p, const Numbers& a, const Numbers& b, const Numbers& bias, Numbers y, int threads = 2) {
  const AmxProduct<float> product(p, DType::kFloat, threads);
  Tensor scratch(DType::kUint8, {static_cast<int64_t>(product.scratch_bytes())});
  product.run(a.data(), b.data(), bias.empty() ? nullptr : bias.data(), y.data(), scratch.data());
  return y;
}

// The largest distances from the sums in float64, relative to the sums of magnitudes.
struct Errors {
  double actual = 0, one_by_one = 0;  // the latter of sums in float32, one product after the other
};

Errors errors_of(const Product& p, Numbers& a, Numbers& b, const Numbers& y) {
  Errors errors;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double exact = 0, magnitude = 0;
      float one_by_one = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const float x = at(a, p.a, i, k), w = at(b, p.b, k, j);
        const double term = p.alpha * static_cast<double>(x) * w;
        exact += term;
        magnitude += std::abs(term);
        one_by_one += static_cast<float>(p.alpha) * x * w;
      }
      const double actual = y[static_cast<size_t>(i * p.n + j)];
      errors.actual = std::max(errors.actual, std::abs(actual - exact) / magnitude);
      errors.one_by_one = std::max(errors.one_by_one, std::abs(one_by_one - exact) / magnitude);
    }
  }
  return errors;
}

// Panels and tiles that are full, lack lines or lack depth; one block of k and several; both operands shared.
TEST(AmxProduct, IsAsCloseAsSumsInFloat32) {
  SKIP_WITHOUT_AMX();
  for (const Shape& mkn : {Shape{96, 96, 96}, Shape{1, 64, 1}, Shape{33, 65, 95}, Shape{200, 1601, 49},
                           Shape{49, 801, 1100}, Shape{1100, 70, 40}}) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        const Product p = product_of(mkn[0], mkn[1], mkn[2], trans_a, trans_b);
        Numbers a = random_numbers(p.m * p.k, 1), b = random_numbers(p.k * p.n, 2);
        const Numbers y = run(p, a, b, {}, Numbers(static_cast<size_t>(p.m * p.n)));
        const Errors errors = errors_of(p, a, b, y);
        const bool many = p.m * p.n >= 1000;  // the largest of so many errors is not by chance
        EXPECT_TRUE(!many || errors.actual <= errors.one_by_one) << to_string(mkn) << trans_a << trans_b;
        EXPECT_LT(errors.actual, 0x1p-22) << to_string(mkn) << trans_a << trans_b;
      }
    }
  }
}

// Numbers of all magnitudes, and sums that cancel: products of single numbers are as good as float32's, 2^-23.
TEST(AmxProduct, KeepsAllBitsOfItsOperands) {
  SKIP_WITHOUT_AMX();
  const Product p = product_of(64, 1, 64);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-40, 40), mantissa(1, 2);
  Numbers a(64), b(64);
  for (Numbers* numbers : {&a, &b}) {
    for (float& x : *numbers) x = std::ldexp(mantissa(random), static_cast<int>(exponent(random)));
  }
  a[0] = 1 + 0x1p-23f, b[0] = 1 - 0x1p-24f, a[1] = -a[0], b[1] = 0x1.fffffep0f;
  const Numbers y = run(p, a, b, {}, Numbers(64 * 64));
  EXPECT_LT(errors_of(p, a, b, y).actual, 0x1p-22);
}

TEST(AmxProduct, AddsBiasesAndStartingValues) {
  SKIP_WITHOUT_AMX();
  for (const int64_t n : {40, 400}) {
    Product p = product_of(70, 900, n);
    p.alpha = 0.5;
    Numbers a = random_numbers(p.m * p.k, 1), b = random_numbers(p.k * p.n, 2);
    const Numbers bias = random_numbers(n, 3), start = random_numbers(p.m * n, 4);
    const Numbers plain = run(p, a, b, {}, Numbers(start.size())), biased = run(p, a, b, bias, Numbers(start.size()));
    p.accumulate = true;
    const Numbers onto = run(p, a, b, {}, start);
    EXPECT_LT(errors_of(p, a, b, plain).actual, 0x1p-22);
    for (size_t i = 0; i < start.size(); ++i) {
      EXPECT_NEAR(biased[i], plain[i] + bias[i % static_cast<size_t>(n)], 1e-5) << i;
      EXPECT_NEAR(onto[i], plain[i] + start[i], 1e-5) << i;
    }
  }
}

TEST(AmxProduct, WritesRowsThatAreApart) {
  SKIP_WITHOUT_AMX();
  Product p = product_of(40, 80, 50);
  Numbers a = random_numbers(p.m * p.k, 1), b = random_numbers(p.k * p.n, 2);
  const Numbers expected = run(p, a, b, {}, Numbers(40 * 50));
  p.y.row_stride = 57;
  const Numbers y = run(p, a, b, {}, Numbers(40 * 57, -7));
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], i % 57 < 50 ? expected[i / 57 * 50 + i % 57] : -7) << i;
}

TEST(AmxProduct, DoesNotDependOnThreads) {
  SKIP_WITHOUT_AMX();
  for (const Shape& mkn : {Shape{300, 1000, 500}, Shape{500, 1000, 300}}) {
    const Product p = product_of(mkn[0], mkn[1], mkn[2]);
    const Numbers a = random_numbers(p.m * p.k, 1), b = random_numbers(p.k * p.n, 2);
    const Numbers zeros(static_cast<size_t>(p.m * p.n)), one = run(p, a, b, {}, zeros, 1);
    for (const int threads : {2, 3, 7}) EXPECT_EQ(run(p, a, b, {}, zeros, threads), one) << threads;
  }
}

// What is not finite reaches what it would reach without AMX, and nothing else; what is finite stays so.
TEST(AmxProduct, CarriesInfinitiesAndNaN) {
  SKIP_WITHOUT_AMX();
  const float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  const Product p = product_of(70, 100, 90);
  Numbers a = random_numbers(p.m * p.k, 1), b = random_numbers(p.k * p.n, 2);
  const Numbers usual = run(p, a, b, {}, Numbers(70 * 90));
  at(a, p.a, 5, 17) = infinity;                                          // row 5
  at(a, p.a, 6, 20) = most;                                              // row 6
  at(b, p.b, 30, 40) = std::numeric_limits<float>::quiet_NaN();          // column 40
  for (int64_t j = 0; j < p.n; ++j) at(b, p.b, 20, j) = j == 2 ? 1 : 0;  // what `most` meets
  const Numbers y = run(p, a, b, {}, Numbers(70 * 90));
  for (int64_t j = 0; j < p.n; ++j) {
    const float five = y[static_cast<size_t>(5 * p.n + j)], six = y[static_cast<size_t>(6 * p.n + j)];
    if (j == 40) {
      EXPECT_TRUE(std::isnan(five) && std::isnan(six) && std::isnan(y[static_cast<size_t>(50 * p.n + j)]));
      continue;
    }
    EXPECT_EQ(five, std::copysign(infinity, at(b, p.b, 17, j))) << j;
    if (j == 2) {
      EXPECT_NEAR(six / most, 1, 1e-6);
    } else {
      EXPECT_LT(std::abs(six), 100) << j;
    }
    EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(50 * p.n + j)])) << j;
  }
  EXPECT_TRUE(std::isfinite(usual[0]));
}

// A batch that meets one b is one product. Its items lie anywhere: here, the rows of all of them take turns.
TEST(AmxProduct, OfABatch) {
  SKIP_WITHOUT_AMX();
  const int64_t items = 5, m = 64, k = 200, n = 150;
  Product p = product_of(m, k, n);
  p.a.batch = p.y.batch = {items};
  p.b.batch = {1};
  p.a.batch_strides = {k};
  p.a.row_stride = items * k;
  p.b.batch_strides = {0};
  p.y.batch_strides = {m * n};
  ASSERT_TRUE(is_amx_product(p, DType::kFloat));
  const Numbers a = random_numbers(items * m * k, 1), b = random_numbers(k * n, 2);
  const Numbers y = run(p, a, b, {}, Numbers(static_cast<size_t>(items * m * n)), 3);
  for (int64_t item = 0; item < items; ++item) {
    Product one = product_of(m, k, n);
    one.a.row_stride = items * k;
    const Numbers from(a.begin() + item * k, a.end());
    const Numbers expected = run(one, from, b, {}, Numbers(static_cast<size_t>(m * n)));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), y.begin() + item * m * n)) << item;
  }
}

// The same numbers as float32 ones: products are exact, and sums go the same way.
TEST(AmxProduct, OfBfloat16) {
  SKIP_WITHOUT_AMX();
  for (const Shape& mkn : {Shape{40, 300, 70}, Shape{70, 3201, 40}, Shape{65, 7000, 33}}) {  // one block of k, and more
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        const Product p = product_of(mkn[0], mkn[1], mkn[2], trans_a, trans_b);
        const std::vector<BFloat16> a = rounded(random_numbers(p.m * p.k, 1)),
                                    b = rounded(random_numbers(p.k * p.n, 2));
        const Numbers bias = random_numbers(p.n, 3);
        Numbers wide_a = widened(a), wide_b = widened(b), y(static_cast<size_t>(p.m * p.n));
        const auto run_into = [&](DType type, const float* row, void* to, int threads) {
          const AmxProduct<BFloat16> product(p, type, threads);
          Tensor scratch(DType::kUint8, {static_cast<int64_t>(product.scratch_bytes())});
          product.run(a.data(), b.data(), row, to, scratch.data());
        };
        run_into(DType::kFloat, nullptr, y.data(), 2);
        EXPECT_LT(errors_of(p, wide_a, wide_b, y).actual, 0x1p-22) << to_string(mkn) << trans_a << trans_b;
        run_into(DType::kFloat, bias.data(), y.data(), 2);
        std::vector<BFloat16> narrow(y.size());
        for (const int threads : {1, 3}) {
          run_into(DType::kBFloat16, bias.data(), narrow.data(), threads);
          EXPECT_EQ(widened(narrow), widened(rounded(y))) << to_string(mkn) << trans_a << trans_b << threads;
        }
      }
    }
  }
}

// oneDNN, which makes small products, configures tiles in its own way, on the same threads.
TEST(AmxProduct, LivesBesideOneDnn) {
  SKIP_WITHOUT_AMX();
  ASSERT_TRUE(is_amx_product(product_of(230, 240, 250), DType::kFloat));
  ASSERT_FALSE(is_amx_product(product_of(60, 70, 80), DType::kBFloat16));
  const Tensor a = random_tensor(DType::kFloat, {230, 240}, 1), b = random_tensor(DType::kFloat, {240, 250}, 2);
  const Tensor small_a = random_tensor(DType::kFloat, {60, 70}, 3), small_b = random_tensor(DType::kFloat, {70, 80}, 4);
  const auto large = [&] { return run_node("Gemm", {a, b})[0]; };
  const auto small = [&] {
    return run_node("Gemm", {small_a.cast(DType::kBFloat16), small_b.cast(DType::kBFloat16)}, {}, 1, kDomain)[0];
  };
  const Tensor first_large = large(), first_small = small();
  const auto exact = [](const Tensor& x, const Tensor& y) {
    return run_node("Gemm", {x.cast(DType::kDouble), y.cast(DType::kDouble)})[0];
  };
  EXPECT_LT(relative_error(first_large, exact(a, b)), 1e-6);
  EXPECT_LT(relative_error(first_small, exact(small_a, small_b)), 0.02);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(relative_error(large(), first_large), 0);
    EXPECT_EQ(relative_error(small(), first_small), 0);
  }
}

}  // namespace
}  // namespace onnx_train::cpu::amx_product_test
