// Inference of the contents of small integer matrices: PyTorch's older exporter writes the pads of F.pad as a vector
// that becomes a matrix, whose rows are reversed, which is transposed and flattened again. Pure functions; any thread.
#pragma once

#include <optional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The elements of the node's first output in row-major order, where it is a Slice or a Transpose of a tensor whose
// elements are known; nothing otherwise. Throws nothing: a node that is not valid has no known elements.
std::optional<Dims> moved_elements(const Node& node);

}  // namespace onnx_train
