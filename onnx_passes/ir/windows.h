// How the window of a Conv, ConvTranspose or pool moves over its input: the attributes of the node with their defaults
// filled in, and auto_pad resolved to numbers.
#pragma once

#include <optional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct Windows {
  Shape kernel, strides, dilations, pads_begin, pads_end;  // one number for each spatial axis

  Shape pads() const;  // as ONNX has them: all begins, then all ends
};

// Empty when the types do not tell: the size of a Conv's kernel is not known, or auto_pad depends on a size that is
// not. Throws Error when the attributes do not fit the input.
std::optional<Windows> find_windows(const Node& node);

}  // namespace onnx_train
