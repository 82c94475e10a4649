// How work is cut into threads. Constants and pure functions, for host and device code.
#pragma once

#include <cstdint>

namespace onnx_train::cuda {

inline constexpr unsigned kThreads = 256;  // of a block, where nothing else decides

// How many threads share each of `rows` rows of n elements, which are contiguous or not: 1, a warp, or a block.
inline int row_threads(int64_t rows, int64_t n, bool contiguous) {
  constexpr int64_t kManyRows = 4096, kShort = 1024;
  if (n <= 4 || (!contiguous && rows >= kManyRows)) return 1;
  return n <= kShort ? 32 : static_cast<int>(kThreads);
}

}  // namespace onnx_train::cuda
