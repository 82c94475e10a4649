// Rows of elements that threads share: a thread, a warp, or a block per row, depending on its length.
#pragma once

#include "kernels/cuda/support/threads.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {

// kRowThreads threads (1, 32 or kThreads) share a row.
template <int kRowThreads>
struct RowThreads {
  static constexpr int kCount = kRowThreads;
  static_assert(kRowThreads == 1 || kRowThreads == gpu::kWarpSize || kRowThreads == kThreads);

  // The row of the calling thread, and its number in the row. All threads of a warp or block have the same row if
  // kRowThreads is above 1.
  __device__ static int64_t row() { return int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads; }
  __device__ static int64_t first() { return threadIdx.x % kRowThreads; }

  // Combines the values of all threads of the row; each gets the result.
  template <typename T, typename F>
  __device__ static T merge(T value, const F& combine) {
    if constexpr (kRowThreads == gpu::kWarpSize) {
      return from_lane_0(merge_warp(value, combine));
    } else if constexpr (kRowThreads > gpu::kWarpSize) {
      return merge_block<kThreads>(value, combine);
    }
    return value;
  }
};

}  // namespace onnx_train::cuda
