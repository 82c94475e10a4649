// Micro-kernel types of the direct convolutions (direct.cc, wgrad_direct.cc): a tile of kRows x kColumns float32 sums
// fits into the AVX-512 registers. Only for code that checks isa() first.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#define ONNX_TRAIN_TARGET_AVX512 [[gnu::target("arch=x86-64-v4")]]
#define ONNX_TRAIN_TARGET_AVX512_BF16 [[gnu::target("arch=x86-64-v4,avx512bf16")]]
#else
#define ONNX_TRAIN_TARGET_AVX512
#define ONNX_TRAIN_TARGET_AVX512_BF16
#endif

namespace onnx_train::cpu {

constexpr int64_t kLanes = 16;
constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 2 * kLanes;

using Vector [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(sizeof(float)), gnu::may_alias]] = float;

// Two bfloat16 numbers that one instruction multiplies and adds up; the first is in the low 16 bits.
using Bfloat16Pair = uint32_t;

inline Bfloat16Pair pair_of(uint16_t first, uint16_t second) { return first | static_cast<uint32_t>(second) << 16; }
inline float first_of(Bfloat16Pair pair) { return std::bit_cast<float>(pair << 16); }
inline float second_of(Bfloat16Pair pair) { return std::bit_cast<float>(pair & 0xffff0000); }

// sums[i] += first(a) first(b[i]) + second(a) second(b[i]), in float32.
ONNX_TRAIN_TARGET_AVX512_BF16 inline void add_product(Vector& sums, Bfloat16Pair a, const Bfloat16Pair* b) {
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
