// What the kernel of a product with a cross entropy (linear_cross_entropy.cc) does with a row of the product on its way
// to the loss: a scale, a bound, a rounding. Plain values and pure functions; any thread; called within `vectorized`
// (simd.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/support/stored.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {

template <typename T>
T rounded_to(DType dtype, T x) {
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::kBFloat16) return rounded<BFloat16>(x);
    if (dtype == DType::kFloat16) return static_cast<float>(Float16(x));
  }
  return x;
}

template <typename T>
void round_row(DType dtype, int64_t n, T* x) {
  if (dtype == DType::kUndefined) return;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) x[c] = rounded_to(dtype, x[c]);
}

// What follows the product, forward and backward.
template <typename T>
struct LogitsOfProduct {
  T scale, cap;  // cap 0: none
  DType rounding;
  bool rounds_product;  // the product is not stored in the type of the rounding

  bool has_slope() const { return scale != 1 || cap != 0; }
  // Makes the logits of n numbers of the product.
  void apply(int64_t n, T* x) const {
    if (rounds_product) round_row(rounding, n, x);
    if (!has_slope()) return;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) x[c] *= scale;
    if (cap != 0) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) x[c] = cap * math::tanh(x[c]);
    }
    round_row(rounding, n, x);
  }
  // dx *= dlogits / dproduct where the product is x
  template <typename S>
  void multiply_by_slopes(int64_t n, const S* x, T* dx) const {
    if (cap == 0) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) dx[c] *= scale;
      return;
    }
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const T t = math::tanh(scale * load(x[c]));
      dx[c] *= cap * (1 - t * t) * scale;
    }
  }
};

// Whether the label is the first of the largest logits.
template <typename T>
bool is_first_of_largest(const T* x, int64_t label, T most) {
  if (!(x[label] == most)) return false;
  bool is_before = false;
  for (int64_t c = 0; c < label; ++c) is_before |= x[c] == most;
  return !is_before;
}

}  // namespace onnx_train::cpu
