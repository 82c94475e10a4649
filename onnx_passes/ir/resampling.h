// The mathematics of Resize: y = W x along each resized axis, with a sparse matrix W that follows from attributes,
// sizes and scales. The forward kernel multiplies by W, the gradient by its transpose; the body of ResizeGrad
// (functions/resampling.cc) expresses the same W with ONNX operators.
//
// The numbers are those of ONNX's reference implementation (onnx/reference/ops/op_resize.py), in float64. Plain values
// and pure functions; any thread. They throw Error that names the node when something does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// A resized axis.
struct ResizedAxis {
  int64_t axis = 0, in = 0, out = 0;
  double scale = 1;           // divisor of coordinates: the given scale, or out / in
  double width = 0;           // scale * in: `out` before rounding
  double start = 0, end = 1;  // the region of interest of tf_crop_and_resize
};

struct Resampling {
  std::string mode, coordinates, nearest_mode;
  double cubic_a = -0.75, extrapolation_value = 0;
  bool exclude_outside = false, antialias = false;
  std::vector<ResizedAxis> axes;  // in order, without axes that keep their size
};

// `node` is a Resize or ResizeGrad of images of shape `x` to shape `y`. Reads those of roi, scales and sizes that the
// attributes require; empty tensors are absent or unknown inputs. Throws Error for attributes, numbers or shapes that
// do not fit together.
Resampling find_resampling(const Node& node, const Shape& x, const Shape& y, const Tensor& roi, const Tensor& scales,
                           const Tensor& sizes);

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

SparseMatrix interpolation_matrix(const Resampling& resampling, const ResizedAxis& axis);
SparseMatrix transpose(const SparseMatrix& matrix);  // drops `outside`: a constant has no gradient

// The axes that roi, scales and sizes refer to: the attribute, counted from the front, or all axes.
std::vector<int64_t> resize_axes(const Node& node, int64_t rank);
// The attributes that Resize and ResizeGrad share and that define the matrices, with defaults filled in, for these
// axes.
Attrs resize_attrs(const Node& node, const std::vector<int64_t>& axes);
// The size that `scale` makes of `size` elements: their product, rounded down. A scale is a float, and 0.7 as a float
// is slightly smaller; as in PyTorch and ONNX Runtime, 10 elements nevertheless give 7.
int64_t scaled_size(int64_t size, double scale);
// Whether optional input i is present: an input without elements, as in files before opset 13, counts as absent.
bool resize_has_input(const Node& node, int i);

}  // namespace onnx_train
