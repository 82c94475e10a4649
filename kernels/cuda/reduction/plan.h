// The traversal of a reduction's input. Axes are merged until kept and reduced ones alternate. Sizes alone determine
// the kernel and the number of pieces, and every sum has one order: the same inputs give the same bits. A plain value.
#pragma once

#include <vector>

#include "kernels/cuda/support/axes.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train::cuda {

struct ReductionPlan {
  std::vector<IndexedAxis<2>> kept;     // strides in the input and in the output
  std::vector<IndexedAxis<1>> reduced;  // strides in the input
  int64_t outputs = 1;
  int64_t count = 1;     // elements per output
  int64_t pieces = 1;    // pieces of an output; each has an accumulator
  int64_t piece = 1;     // elements of a piece
  bool columns = false;  // neighbouring outputs are neighbours in the input

  ReductionPlan(const Shape& shape, const std::vector<bool>& is_reduced);
  // Number of accumulators in the workspace.
  int64_t partials() const { return pieces > 1 ? outputs * pieces : 0; }
};

inline constexpr int kColumns = 32;  // outputs of a block of the kernel for columns: a warp reads a row of them

}  // namespace onnx_train::cuda
