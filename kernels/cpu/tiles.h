// What the products of convolutions.h that are ours share: tiles of kRows x kColumns sums that stay in the registers of
// AVX-512.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#define ONNX_TRAIN_WIDE_VECTORS [[gnu::target("arch=x86-64-v4")]]
#else
#define ONNX_TRAIN_WIDE_VECTORS
#endif

namespace onnx_train::cpu {

constexpr int64_t kLanes = 16;
constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 2 * kLanes;

using Vector [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(sizeof(float)), gnu::may_alias]] = float;

inline int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

inline bool has_wide_vectors() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

}  // namespace onnx_train::cpu
