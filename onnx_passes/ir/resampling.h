// What Resize computes, as mathematics: along each resized axis y = W x, with a sparse matrix W that attributes, sizes
// and scales give. The forward kernel multiplies by W, the gradient by its transpose; the body of ResizeGrad
// (functions/resampling.cc) writes the same W in ONNX's operators.
//
// Numbers are those of ONNX's reference implementation (onnx/reference/ops/op_resize.py), in float64. Plain values and
// pure functions, any thread. What does not fit is an Error that names the node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// One axis that is resized.
struct ResizedAxis {
  int64_t axis = 0, in = 0, out = 0;
  double scale = 1;           // what coordinates are divided by: the given one, or out / in
  double width = 0;           // scale * in: `out` before it was made a whole number
  double start = 0, end = 1;  // the region of interest that tf_crop_and_resize looks at
};

struct Resampling {
  std::string mode, coordinates, nearest_mode;
  double cubic_a = -0.75, extrapolation_value = 0;
  bool exclude_outside = false, antialias = false;
  std::vector<ResizedAxis> axes;  // in order, without those that stay as they are
};

// `node` is a Resize or ResizeGrad of images of shape `x` to shape `y`. Of roi, scales and sizes those are read that
// the attributes and the other two leave open; empty tensors stand for inputs left out, or not known. Throws Error for
// attributes, numbers or shapes that do not fit together.
Resampling find_resampling(const Node& node, const Shape& x, const Shape& y, const Tensor& roi, const Tensor& scales,
                           const Tensor& sizes);

// A matrix of `rows()` x `columns`, row by row; columns ascend within a row.
struct SparseMatrix {
  struct Entry {
    int64_t column;
    double weight;
  };
  int64_t columns = 0;
  std::vector<int64_t> begin = {0};  // row i has entries [begin[i], begin[i + 1])
  std::vector<Entry> entries;
  std::vector<int64_t> outside;  // rows without entries that show the extrapolation value

  int64_t rows() const { return static_cast<int64_t>(begin.size()) - 1; }
};

SparseMatrix interpolation_matrix(const Resampling& resampling, const ResizedAxis& axis);
SparseMatrix transpose(const SparseMatrix& matrix);  // without `outside`: a constant has no gradient

// The axes that roi, scales and sizes refer to: the attribute, counted from the front, or all.
std::vector<int64_t> resize_axes(const Node& node, int64_t rank);
// What Resize and ResizeGrad have in common: the attributes that the matrices depend on, defaults filled in, for these
// axes.
Attrs resize_attrs(const Node& node, const std::vector<int64_t>& axes);
// What `scale` makes of an axis of `size` elements: their product, rounded down. A scale is a float, and 0.7 as a float
// is a little less: of 10 elements it makes 7, as it does in PyTorch and ONNX Runtime.
int64_t scaled_size(int64_t size, double scale);
// Whether optional input i is there: one without elements, as files before opset 13 have it, is not.
bool resize_has_input(const Node& node, int i);

}  // namespace onnx_train
