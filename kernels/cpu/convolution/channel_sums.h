// Sums over all axes but the last (channels): the bias gradient of a channels-last convolution.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/support/parallel.h"

namespace onnx_train::cpu {

// sums[c] = Σ over rows of x[row, c], accumulated in float64. Computes blocks of neighbouring channels in parallel.
template <typename T>
void add_up_channels(const T* x, int64_t rows, int64_t channels, float* sums) {
  constexpr int64_t kAtOnce = 64;
  const int64_t blocks = (channels + kAtOnce - 1) / kAtOnce;
  parallel_for(blocks, std::max<int64_t>(1, kElementGrain / (rows * kAtOnce)), [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      const int64_t first = block * kAtOnce, count = std::min(kAtOnce, channels - first);
      double of_block[kAtOnce] = {};
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * channels + first;
        for (int64_t i = 0; i < count; ++i) of_block[i] += static_cast<double>(static_cast<float>(from[i]));
      }
      std::copy(of_block, of_block + count, sums + first);
    }
  });
}

}  // namespace onnx_train::cpu
