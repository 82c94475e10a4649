// What the products of convolutions.h that are ours share: tiles of kRows x kColumns sums that stay in the registers of
// AVX-512.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#define ONNX_TRAIN_WIDE_VECTORS [[gnu::target("arch=x86-64-v4")]]
#define ONNX_TRAIN_BFLOAT16_VECTORS [[gnu::target("arch=x86-64-v4,avx512bf16")]]
#else
#define ONNX_TRAIN_WIDE_VECTORS
#define ONNX_TRAIN_BFLOAT16_VECTORS
#endif

namespace onnx_train::cpu {

constexpr int64_t kLanes = 16;
constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 2 * kLanes;

using Vector [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(sizeof(float)), gnu::may_alias]] = float;

// Two bfloat16 numbers whose products are summed: the first in the low bits.
using Bfloat16Pair = uint32_t;

inline Bfloat16Pair pair_of(uint16_t first, uint16_t second) { return first | static_cast<uint32_t>(second) << 16; }
inline float first_of(Bfloat16Pair pair) { return std::bit_cast<float>(pair << 16); }
inline float second_of(Bfloat16Pair pair) { return std::bit_cast<float>(pair & 0xffff0000); }

// sums[i] += the products of a with b[i], two each, in float32.
ONNX_TRAIN_BFLOAT16_VECTORS inline void add_product(Vector& sums, Bfloat16Pair a, const Bfloat16Pair* b) {
#if defined(__x86_64__)
  const __m512i repeated = _mm512_set1_epi32(static_cast<int>(a));
  sums =
      _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(repeated), reinterpret_cast<__m512bh>(_mm512_loadu_si512(b)));
#else
  for (int64_t i = 0; i < kLanes; ++i) sums[i] += first_of(a) * first_of(b[i]) + second_of(a) * second_of(b[i]);
#endif
}

inline int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace onnx_train::cpu
