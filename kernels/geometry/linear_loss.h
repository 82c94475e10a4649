// The sizes and parameters of a product with the cross entropy of its result, LinearCrossEntropy (body:
// kernels/functions/losses.cc), from its node, and the chunks of positions in which kernels compute it. A plain value.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

struct LinearLossSpec {
  int64_t positions, classes, width;  // logits are positions x classes, sums of `width` products
  bool transposed;                    // w is classes x width, else width x classes
  double scale, cap;
  DType rounding;  // kUndefined: none

  explicit LinearLossSpec(const NodeSpec& spec);

  // The numbers of rows for which products are prepared: that of a chunk, so that all chunks are about equal, and a
  // smaller one, for what is left of the positions that are not ignored.
  std::vector<int64_t> chunks() const;
};

// The most rows of a chunk, and the number of positions from which on there are two or more. Each chunk after the first
// reads and writes all of dw again, as many bytes as the other passes over its logits save where it has as many rows as
// the layer is wide.
inline constexpr int64_t kMostChunkRows = 512, kLeastChunkedPositions = 512;

}  // namespace onnx_train
