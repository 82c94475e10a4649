// Launches of kernels whose threads share rows (row_threads.h).
#pragma once

#include <algorithm>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/row_threads.h"

namespace onnx_train::cuda {

// Calls f(std::integral_constant) with the number of threads per row, for `rows` rows of n contiguous or strided
// elements.
template <typename F>
void dispatch_row_threads(int64_t rows, int64_t n, bool contiguous, F&& f) {
  switch (row_threads(rows, n, contiguous)) {
    case 1: return f(std::integral_constant<int, 1>());
    case gpu::kWarpSize: return f(std::integral_constant<int, gpu::kWarpSize>());
    default: return f(std::integral_constant<int, static_cast<int>(kThreads)>());
  }
}

template <int kRowThreads>
unsigned row_blocks(int64_t rows) {
  constexpr int64_t kRowsOfBlock = kThreads / kRowThreads;
  return static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

}  // namespace onnx_train::cuda
