// Loops over consecutive elements that apply a scalar functor (kernels/math) on one thread, and the in-place writes
// that they allow. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cpu/support/simd.h"
#include "kernels/kernel.h"
#include "kernels/math/convert.h"

namespace onnx_train::cpu {

// Integer loops are compiled for the baseline only: more variants would add many copies for little gain.
template <typename T>
inline constexpr bool kWorthWideVectors = std::is_floating_point_v<T> || math::kIsHalf<T>;

// y[i] = op(x[i]). y may be x.
template <typename T, typename R, typename Op>
void map(int64_t n, const T* x, R* y, Op op) {
  const auto loop = [=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = op(x[i]);
  };
  if constexpr (kWorthWideVectors<T>) {
    vectorized(loop);
  } else {
    loop();
  }
}

// y[i] = op(a[i], b[i]); an operand that does not move is one scalar. y may be an operand that moves.
template <typename A, typename B, typename R, typename Op>
void map(int64_t n, const A* a, bool a_moves, const B* b, bool b_moves, R* y, Op op) {
  const auto loop = [=] {
    if (a_moves && b_moves) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], b[i]);
    } else if (a_moves) {
      const B scalar = *b;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], scalar);
    } else if (b_moves) {
      const A scalar = *a;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = op(scalar, b[i]);
    } else {  // two of several operands; the third broadcasts both
      const R value = op(*a, *b);
      for (int64_t i = 0; i < n; ++i) y[i] = value;
    }
  };
  if constexpr (kWorthWideVectors<A>) {
    vectorized(loop);
  } else {
    loop();
  }
}

}  // namespace onnx_train::cpu
