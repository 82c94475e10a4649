// Row sums of the normalization kernels, and reductions whose order does not depend on the number of threads. The loops
// are pure and are called within `vectorized` (simd.h). Each operator group has its own file of kernel rows;
// normalization.cc joins them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/support/stored.h"
#include "kernels/geometry/channels.h"
#include "kernels/math/normalization.h"

namespace onnx_train::cpu {

std::vector<Kernel> layer_normalization_kernels();  // LayerNormalization, RMSNormalization
std::vector<Kernel> batch_normalization_kernels();  // BatchNormalization in inference and training
std::vector<Kernel> group_normalization_kernels();  // GroupNormalization, InstanceNormalization
std::vector<Kernel> channels_last_group_normalization_kernels();
std::vector<Kernel> local_normalization_kernels();  // LpNormalization, LRN

template <typename T>
T sum(const T* __restrict x, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

// Σ (x - center)²
template <typename T>
T sum_of_squares(const T* __restrict x, T center, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += (x[i] - center) * (x[i] - center);
  return total;
}

// Two sums over a channel or a piece of it.
struct Sums {
  double first = 0, second = 0;
};

// Σ dy and Σ dy (x - mean) of a channel: `rows` rows of `rest` elements, `stride` apart.
template <typename T>
Sums gradient_sums(const T* __restrict x, const T* __restrict dy, T mean, int64_t rows, int64_t rest, int64_t stride) {
  Sums sums;
  for (int64_t r = 0; r < rows; ++r) {
    const T *row = x + r * stride, *dy_row = dy + r * stride;
    T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
    for (int64_t i = 0; i < rest; ++i) {
      first += dy_row[i];
      second += dy_row[i] * (row[i] - mean);
    }
    sums.first += static_cast<double>(first);
    sums.second += static_cast<double>(second);
  }
  return sums;
}

// y = (x - mean) factor + bias for rows as above. y may be x.
template <typename X, typename Y>
void scale_rows(const X* x, Computed<X> mean, Computed<X> factor, Computed<X> bias, int64_t rows, int64_t rest,
                int64_t stride, Y* y) {
  for (int64_t r = 0; r < rows; ++r) {
    const X* from = x + r * stride;
    Y* to = y + r * stride;
#pragma omp simd
    for (int64_t i = 0; i < rest; ++i) {
      to[i] = store<Y>(math::normalized(load(from[i]), mean, factor, bias));
    }
  }
}

// Cuts [0, n) into at most 32 pieces of at least `least` items. Sums over pieces, added in order, do not depend on the
// number of threads.
struct Pieces {
  int64_t n;
  int64_t count;
  Pieces(int64_t items, int64_t least) : n(items), count(std::clamp<int64_t>(items / least, 1, 32)) {}
  int64_t begin(int64_t piece) const { return n * piece / count; }
  int64_t end(int64_t piece) const { return begin(piece + 1); }
};

}  // namespace onnx_train::cpu
