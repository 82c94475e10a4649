// Elements that are stored in one type and computed on in another: bfloat16 ones in float32. For the inner loops of
// kernels: nothing here branches, so that all of it becomes vector code.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {

// What elements that are stored as S are computed in.
template <typename S>
using Computed = std::conditional_t<std::is_same_v<S, BFloat16>, float, S>;

template <typename S>
inline Computed<S> load(S x) {
  return static_cast<Computed<S>>(x);
}

// x, rounded to what R holds: as BFloat16 itself rounds.
template <typename R, typename T>
inline T rounded(T x) {
  if constexpr (std::is_same_v<R, BFloat16>) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t nearest = bits + 0x7fff + ((bits >> 16) & 1), nan = bits | 0x400000;
    return std::bit_cast<float>((x != x ? nan : nearest) & 0xffff0000);
  } else {
    return x;
  }
}

// x, which S holds without rounding.
template <typename S, typename T>
inline S store_exactly(T x) {
  if constexpr (std::is_same_v<S, BFloat16>) {
    BFloat16 stored;
    stored.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    return stored;
  } else {
    return static_cast<S>(x);
  }
}

template <typename S, typename T>
inline S store(T x) {
  return store_exactly<S>(rounded<S>(x));
}

// A row in another type. Called within `vectorized` (simd.h).
template <typename From, typename To>
void convert_row(const From* __restrict from, int64_t n, To* __restrict to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = store<To>(load(from[i]));
}

}  // namespace onnx_train::cpu
