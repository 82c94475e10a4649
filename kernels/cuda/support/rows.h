// Launches of kernels whose threads share rows (row_threads.h).
#pragma once

#include <type_traits>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/row_threads.h"
#include "kernels/geometry/indexing/axis_view.h"

namespace onnx_train::cuda {

template <int kRowThreads>
unsigned row_blocks(int64_t rows) {
  constexpr int64_t kRowsOfBlock = kThreads / kRowThreads;
  return static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

// Enqueues a kernel for `rows` rows of n contiguous or strided elements. kernel_with(threads) returns the kernel for a
// number of threads per row, which is a std::integral_constant. Nothing, if there are no rows.
template <typename F, typename... Arguments>
void enqueue_rows(const Launch& launch, const char* name, int64_t rows, int64_t n, bool contiguous,
                  const F& kernel_with, const Arguments&... arguments) {
  const auto run = [&]<int kRowThreads>(std::integral_constant<int, kRowThreads> threads) {
    enqueue(launch, name, kernel_with(threads), row_blocks<kRowThreads>(rows), kThreads, 0, arguments...);
  };
  if (rows == 0) return;
  switch (row_threads(rows, n, contiguous)) {
    case 1: return run(std::integral_constant<int, 1>());
    case gpu::kWarpSize: return run(std::integral_constant<int, gpu::kWarpSize>());
    default: return run(std::integral_constant<int, static_cast<int>(kThreads)>());
  }
}

// The same for the lines of a tensor of Ts. Lines of rare types have one kernel, which serves all shapes.
template <typename T, typename F, typename... Arguments>
void enqueue_lines(const Launch& launch, const char* name, const AxisView& view, const F& kernel_with,
                   const Arguments&... arguments) {
  if constexpr (std::is_floating_point_v<T> || (std::is_signed_v<T> && sizeof(T) >= 4)) {
    enqueue_rows(launch, name, view.lines(), view.size, view.inner == 1, kernel_with, arguments...);
  } else {
    constexpr int kWarp = gpu::kWarpSize;
    if (view.lines() == 0) return;
    enqueue(launch, name, kernel_with(std::integral_constant<int, kWarp>()), row_blocks<kWarp>(view.lines()), kThreads,
            0, arguments...);
  }
}

}  // namespace onnx_train::cuda
