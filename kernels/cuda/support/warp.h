// Combines values of the threads of a warp or block. The order is fixed, so results do not change between runs.
//
// CUB has the same, but generated kernels include this header where no CUDA toolkit is, and the tests run it on the
// host.
#pragma once

#include "kernels/cuda/support/gpu.h"

namespace onnx_train::cuda {

// Exchanges a value of any size as words of 4 bytes; `exchange` is a shuffle of one word.
template <typename T, typename F>
__device__ T exchange_words(T value, const F& exchange) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  unsigned words[kWords] = {};
  memcpy(words, &value, sizeof(T));
  for (unsigned& word : words) word = exchange(word);
  memcpy(&value, words, sizeof(T));
  return value;
}

template <typename T>
__device__ T shuffle_down(T value, unsigned distance) {
  return exchange_words(value, [=](unsigned word) { return __shfl_down_sync(gpu::kAllLanes, word, distance); });
}

template <typename T>
__device__ T from_lane_0(T value) {
  return exchange_words(value, [](unsigned word) { return __shfl_sync(gpu::kAllLanes, word, 0); });
}

// Combines all lanes' values; lane 0 gets the result. `merge` is associative.
template <typename T, typename F>
__device__ T merge_warp(T value, const F& merge) {
  for (unsigned distance = gpu::kWarpSize / 2; distance > 0; distance /= 2) {
    value = merge(value, shuffle_down(value, distance));
  }
  return value;
}

// Combines the values of kSize threads, the whole block; each thread gets the result.
template <int kSize, typename T, typename F>
__device__ T merge_block(T value, const F& merge) {
  constexpr int kWarps = kSize / gpu::kWarpSize;
  static_assert(kSize % gpu::kWarpSize == 0 && kWarps <= gpu::kWarpSize);
  GPU_SHARED(scratch, T[kWarps]);
  value = merge_warp(value, merge);
  if (threadIdx.x % gpu::kWarpSize == 0) scratch[threadIdx.x / gpu::kWarpSize] = value;
  __syncthreads();
  value = scratch[0];
  for (int w = 1; w < kWarps; ++w) value = merge(value, scratch[w]);
  __syncthreads();  // `scratch` may be written again
  return value;
}

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Smallest {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

}  // namespace onnx_train::cuda
