// The convolution that a node or its gradients compute, for the kernels of every device. Plain values and pure
// functions; any thread. They throw Error that names the node if its shapes do not fit.
#pragma once

#include "kernels/kernel.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {

// y[n, o, p] = Σ over c, k of w[o, c, k] x[n, c, p stride + k dilation - pad], within each group of channels.
struct Convolution {
  Shape x, w, y;  // [batch, group c, in...], [group o, c, kernel...], [batch, group o, out...]
  int64_t group = 1;
  Windows windows;
  bool channels_last = false;      // x and y are stored as [batch, in..., channels]
  DType operands = DType::kFloat;  // element type of the inputs of this direction

  int64_t batch() const { return x[0]; }
  int64_t in_channels() const { return w[1]; }           // channels of x in one group
  int64_t out_channels() const { return w[0] / group; }  // channels of y in one group
};

// Returns the shape in channels-first order, as the formulas use it.
Shape channels_first(const NodeSpec& spec, Shape shape);

// Returns the convolution of a Conv; the one whose input gradient ConvTranspose computes; or the one of which
// ConvGradInput or ConvGradWeight is the gradient.
Convolution conv(const NodeSpec& spec);
Convolution conv_transpose(const NodeSpec& spec);
Convolution conv_grad_input(const NodeSpec& spec);
Convolution conv_grad_weight(const NodeSpec& spec);

// Whether the images have one to three spatial axes.
bool has_image_axes(const NodeSpec& spec);

// Whether the bias gradient, the optional second output, has the type of the first.
bool has_one_output_type(const NodeSpec& spec);

}  // namespace onnx_train
