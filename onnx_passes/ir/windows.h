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

// Takes windows that start behind the input and its first padding out of the types of a pool's outputs. ONNX's
// inference counts them for ceil_mode in opsets before 22; PyTorch and ONNX Runtime never have.
void drop_windows_behind_input(Node* pool);

}  // namespace onnx_train
