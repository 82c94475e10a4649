// Elements that are stored in one type and computed in another: bfloat16 elements are computed in float32. The
// functions are branch-free, so that loops over them vectorize. Pure functions; any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {

// The type in which elements stored as S are computed.
template <typename S>
using Computed = std::conditional_t<std::is_same_v<S, BFloat16>, float, S>;

template <typename S>
inline Computed<S> load(S x) {
  return static_cast<Computed<S>>(x);
}

// x rounded to a value that R can hold, in the same way as the constructor of BFloat16.
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

// Stores x, which must be representable in S.
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

// Converts a row to another element type. Called within `vectorized` (simd.h).
template <typename From, typename To>
void convert_row(const From* __restrict from, int64_t n, To* __restrict to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = store<To>(load(from[i]));
}

}  // namespace onnx_train::cpu
