// The windows of a Conv, ConvTranspose or pool: the attributes of the node with defaults filled in and auto_pad
// resolved. Plain values and pure functions; any thread.
#pragma once

#include <optional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct Windows {
  Shape kernel, strides, dilations, pads_begin, pads_end;  // one number per spatial axis

  Shape pads() const;  // in ONNX's order: all begins, then all ends
  // How many windows fit on an image of these sizes, along each axis.
  Shape counts(const Shape& image) const;
};

// Those with taps of this shape, without auto_pad. Throws Error if the attributes do not fit it.
Windows windows_of(const Node& node, const Shape& kernel);
// Empty if the types do not determine them: the kernel size of a Conv is unknown, or auto_pad depends on an unknown
// size. Throws Error if the attributes do not fit the input.
std::optional<Windows> find_windows(const Node& node);

// Whether the images of a convolution, pool or group normalization in our domain are stored as
// [batch, sizes.., channels].
bool is_channels_last(const Node& node);

// Removes windows that start after the input and its leading padding from the output types of a pool. ONNX's inference
// counts them for ceil_mode in opsets before 22; PyTorch and ONNX Runtime never do.
void drop_windows_behind_input(Node* pool);

}  // namespace onnx_train
