// The sizes and parameters of a product with the cross entropy of its result, LinearCrossEntropy (body:
// kernels/functions/losses.cc), from its node, its products, and the chunks of positions in which kernels compute it. A
// plain value.
#pragma once

#include <vector>

#include "kernels/geometry/products.h"
#include "kernels/kernel.h"

namespace onnx_train {

struct LinearLossSpec {
  // The inputs and outputs of the node.
  enum Input { kH, kW, kLabels, kBias, kWeight, kDloss };
  enum Output { kLoss, kCorrect, kLogP, kRank, kDh, kDw, kDbias, kOutputs };

  int64_t positions, classes, width;  // logits are positions x classes, sums of `width` products
  int64_t rows;                       // of a chunk, as the plan says; 0: the kernel chooses
  bool transposed;                    // w is classes x width, else width x classes
  double scale, cap;
  DType rounding;  // kUndefined: none

  explicit LinearLossSpec(const NodeSpec& spec);

  // The numbers of rows for which a CPU prepares products: that of a chunk, so that all chunks are about equal, and a
  // smaller one, for what is left of the positions that are not ignored.
  std::vector<int64_t> chunks() const;

  // The products of n rows, whose logits, and the gradients in their place, are `step` elements apart: the logits, dh,
  // and dw in the layout of w.
  Product logits_product(int64_t n, int64_t step) const;
  Product dh_product(int64_t n, int64_t step) const;
  Product dw_product(int64_t n, int64_t step, bool accumulate) const;
};

// The most rows of a chunk on a CPU, and the number of positions from which on there are two or more. Each chunk after
// the first reads and writes all of dw again, as many bytes as the other passes over its logits save where it has as
// many rows as the layer is wide.
inline constexpr int64_t kMostChunkRows = 512, kLeastChunkedPositions = 512;

// The rows of a chunk on a GPU, all of which it needs to keep its processors busy: at least 1,024, and as many as the
// layer is wide, for the reason above. 0 where the positions make no two chunks.
int64_t chunk_rows_on_gpu(int64_t positions, int64_t width);

}  // namespace onnx_train
