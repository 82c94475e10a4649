// A convolution and its two gradients on CUDA devices: one description, three directions, two implementations. The
// prepare_* functions run while a kernel is prepared. Images are stored as [batch, channels, sizes..].
#pragma once

#include "kernels/geometry/convolutions.h"

namespace onnx_train {
struct ChannelsLastRule;
}

namespace onnx_train::cuda {

enum class Direction {
  kForward,         // inputs x, w, [bias]; output y
  kInputGradient,   // inputs dy, w, [bias of ConvTranspose]; output dx
  kWeightGradient,  // inputs x, dy; output dw
};

// Which nodes take images channels last (channels_last in lowering.h): convolutions whose operands have been rounded to
// 16 bits, since tensor cores read them so and cuDNN copies other images in each of them; and what stands between them.
// Convolutions of float32 lose by it.
bool takes_channels_last(const Node& node, ChannelsLastRule* rule);

// Whether the node adds a bias per channel of its output, input 2.
bool has_bias(const NodeSpec& spec, Direction direction);

// Products of tiles (tiled.cu). prefers_tiled is true where they support the convolution and have enough rows and
// columns to fill a tile in part.
bool prefers_tiled(const Convolution& c, Direction direction);
Prepared prepare_tiled(const NodeSpec& spec, const Convolution& c, Direction direction);

// Any convolution of float32 or float64: each output element is a sum that one thread, or one block, gathers
// (direct.cu).
Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, Direction direction);

// db, output 1 of ConvGradWeight: the sum of dy, input 1, over all axes but channels (bias_gradient.cu).
Prepared prepare_bias_gradient(const NodeSpec& spec);

}  // namespace onnx_train::cuda
