// What the normalization kernels share: sums over rows and reductions whose order does not depend on the number of
// threads. The rows of the family lie in one file per group; normalization.cc joins them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/multiversion.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> layer_normalization_kernels();  // LayerNormalization, RMSNormalization
std::vector<Kernel> batch_normalization_kernels();  // in inference and in training
std::vector<Kernel> group_normalization_kernels();  // GroupNormalization, InstanceNormalization
std::vector<Kernel> local_normalization_kernels();  // LpNormalization, MeanVarianceNormalization, LRN

constexpr float kEpsilon = 1e-5f;  // ONNX's default for all of them

template <typename T>
ONNX_TRAIN_MULTIVERSION T sum(const T* __restrict x, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

// Σ (x - center)²
template <typename T>
ONNX_TRAIN_MULTIVERSION T sum_of_squares(const T* __restrict x, T center, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += (x[i] - center) * (x[i] - center);
  return total;
}

// Σ a (x - center)
template <typename T>
ONNX_TRAIN_MULTIVERSION T dot_centered(const T* __restrict a, const T* __restrict x, T center, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += a[i] * (x[i] - center);
  return total;
}

// y = a x + b
template <typename T>
ONNX_TRAIN_MULTIVERSION void affine(const T* __restrict x, T a, T b, int64_t n, T* __restrict y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = a * x[i] + b;
}

// [0, n) in at most 32 pieces of at least `least` items. Sums over pieces, added in order, are the same for any number
// of threads.
struct Pieces {
  int64_t n;
  int64_t count;
  Pieces(int64_t items, int64_t least) : n(items), count(std::clamp<int64_t>(items / least, 1, 32)) {}
  int64_t begin(int64_t piece) const { return n * piece / count; }
  int64_t end(int64_t piece) const { return begin(piece + 1); }
};

}  // namespace onnx_train::cpu
