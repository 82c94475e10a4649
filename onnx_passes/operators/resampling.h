// Attributes, inputs and sizes of Resize. Pure functions; any thread. They throw Error that names the node if an
// attribute does not fit.
#pragma once

#include <cstdint>
#include <vector>

#include "onnx_passes/ir/attrs.h"
#include "onnx_passes/ir/graph.h"

namespace onnx_train {

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
