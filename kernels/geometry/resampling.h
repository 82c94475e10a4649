// The mathematics of Resize: y = W x along each resized axis, with a sparse matrix W that follows from attributes,
// sizes and scales. The forward kernels of every device multiply by W, those of the gradient by its transpose; the body
// of ResizeGrad (functions/resampling.cc) expresses the same W with ONNX operators.
//
// The numbers are those of ONNX's reference implementation (onnx/reference/ops/op_resize.py), in float64. Plain values
// and pure functions; any thread. They throw Error that names the node if its inputs do not fit.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace onnx_train {

// A sparse matrix of `rows()` x `columns` in compressed row form; columns ascend within a row.
struct SparseMatrix {
  struct Entry {
    int64_t column;
    double weight;
  };
  int64_t columns = 0;
  std::vector<int64_t> begin = {0};  // row i has entries [begin[i], begin[i + 1])
  std::vector<Entry> entries;
  std::vector<int64_t> outside;  // rows without entries that take the extrapolation value

  int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }
};

// The matrix of a resized axis, and the product of the axes between it and the next one.
struct ResampledAxis {
  SparseMatrix matrix;
  int64_t between = 1;
  int64_t in() const { return matrix.columns; }
  int64_t out() const { return matrix.rows(); }
};

struct ResampledAxes {
  int64_t outer = 1;  // product of the axes before the first resized one
  std::vector<ResampledAxis> axes;
  double outside = 0;  // value of rows outside the input
};

// Returns the matrices of Resize, or their transposes for ResizeGrad.
ResampledAxes resize_matrices(const NodeSpec& spec);
ResampledAxes resize_grad_matrices(const NodeSpec& spec);

// Orders the axes by least work: shrinking axes first, growing axes last. Among equals, the axis contiguous in memory,
// which costs more, comes first if it grows and last if it shrinks.
std::vector<size_t> order_of(const std::vector<ResampledAxis>& axes);

// Whether a Resize only moves elements: each output element is an input element.
bool only_moves(const NodeSpec& spec);

// Whether the element types are supported and the sizes or scales that define the matrices are known; if there are
// neither, the shapes define them.
bool supports_resize(const NodeSpec& spec);
bool supports_resize_grad(const NodeSpec& spec);

}  // namespace onnx_train
