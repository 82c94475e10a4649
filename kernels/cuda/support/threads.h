// The division of work into threads. Constants and pure functions, for host and device code.
#pragma once

#include <cstdint>

namespace onnx_train::cuda {

inline constexpr unsigned kThreads = 256;  // threads of a block by default

// Number of threads per row for `rows` rows of n contiguous or strided elements: 1, a warp, or a block.
inline int row_threads(int64_t rows, int64_t n, bool contiguous) {
  constexpr int64_t kManyRows = 4096, kShort = 1024;
  if (n <= 4 || (!contiguous && rows >= kManyRows)) return 1;
  return n <= kShort ? 32 : static_cast<int>(kThreads);
}

}  // namespace onnx_train::cuda
