// A convolution and its two gradients on CUDA devices: one description, three directions, by cuDNN (cudnn.h) or, where
// it has no plan, by kernels of ours. The prepare_* functions run while a kernel is prepared. Images are stored as
// [batch, channels, sizes..].
#pragma once

#include "kernels/geometry/convolutions.h"

namespace onnx_train::cuda {

enum class Direction {
  kForward,         // inputs x, w, [bias]; output y
  kInputGradient,   // inputs dy, w, [bias of ConvTranspose]; output dx
  kWeightGradient,  // inputs x, dy; output dw
};

// Whether a kernel computes the convolution, or the gradient of one, of channels-last images if its operands have
// `dtype`, of which float32 may be rounded to TF32.
bool supports_channels_last(const Node& convolution, DType dtype);

// Whether the node adds a bias, input 2, to each channel of its output.
bool has_bias(const NodeSpec& spec, Direction direction);

// Any convolution: each output element is a sum that one thread, or one block, gathers (direct.cu).
Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, Direction direction);

}  // namespace onnx_train::cuda
