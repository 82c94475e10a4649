// Products of a few rows against the definition.
#include "kernels/cpu/products/row_product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <cstring>
#include <random>

#include "tests/support/run_node.h"

namespace onnx_train::cpu::row_product_test {
namespace {

Tensor random_tensor(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor(DType::kFloat, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = normal(random);
  return tensor;
}

Product product_of(int64_t m, int64_t k, int64_t n, bool trans_b) {
  return {row_major_matrices({}, m, k), row_major_matrices({}, k, n, trans_b), row_major_matrices({}, m, n), m, n, k};
}

Tensor run(const Product& p, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor y) {
  const Prepared prepared = prepare_row_product(p, !bias.empty());
  const void* inputs[] = {a.data(), b.data(), bias.data()};
  void* outputs[] = {y.data()};
  Launch launch{};
  launch.inputs = inputs;
  launch.outputs = outputs;
  prepared.run(launch);
  return y;
}

TEST(RowProduct, IsTheProduct) {
  constexpr double kTolerance = 1e-4;
  for (const bool trans_b : {false, true}) {
    for (const auto& [m, k, n] : {std::array<int64_t, 3>{1, 37, 5}, {1, 512, 1030}, {2, 100, 64}, {4, 3, 2050}}) {
      Product p = product_of(m, k, n, trans_b);
      p.alpha = 0.5;
      ASSERT_TRUE(supports_row_product(p));
      const Tensor a = random_tensor({m, k}, 1), b = random_tensor({k, n}, 2), bias = random_tensor({n}, 3);
      const Tensor before = random_tensor({m, n}, 4);
      for (const bool accumulate : {false, true}) {
        p.accumulate = accumulate;
        const Tensor y = run(p, a, b, accumulate ? Tensor() : bias, before.clone());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = accumulate ? before.at(i * n + j) : bias.at(j);
            for (int64_t l = 0; l < k; ++l)
              sum += 0.5 * a.at(i * k + l) * b.at(l * p.b.row_stride + j * p.b.column_stride);
            ASSERT_NEAR(y.at(i * n + j), sum, kTolerance) << m << " " << k << " " << n << " " << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(RowProduct, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const bool trans_b : {false, true}) {
    const Product p = product_of(1, 300, 1003, trans_b);
    const Tensor a = random_tensor({1, 300}, 1), b = random_tensor({300, 1003}, 2);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const Tensor one = run(p, a, b, {}, Tensor(DType::kFloat, {1, 1003}));
    omp_set_num_threads(3);
    const Tensor three = run(p, a, b, {}, Tensor(DType::kFloat, {1, 1003}));
    omp_set_num_threads(threads);
    EXPECT_EQ(std::memcmp(one.data(), three.data(), one.bytes()), 0);
  }
}

TEST(RowProduct, IsOfFewRowsAlone) {
  EXPECT_FALSE(supports_row_product(product_of(5, 8, 8, false)));
  EXPECT_FALSE(supports_row_product(product_of(1, 8, 3, false)));
  EXPECT_FALSE(is_row_product(product_of(1, 8, 8, false)));
  EXPECT_TRUE(is_row_product(product_of(1, 256, 256, false)));
  EXPECT_FALSE(is_row_product(product_of(2, 256, 256, false)));
  EXPECT_TRUE(is_row_product(product_of(4, 768, 768, false)));
}

}  // namespace
}  // namespace onnx_train::cpu::row_product_test
