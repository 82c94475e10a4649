// A convolution and its two gradients on the CPU: one description, three directions, two implementations.
#pragma once

#include "kernels/kernel.h"
#include "onnx_passes/ir/windows.h"

namespace onnx_train::cpu {

// y[n, o, p] = sum over c, k of w[o, c, k] x[n, c, p stride + k dilation - pad], in groups of channels.
struct Convolution {
  Shape x, w, y;  // [batch, group c, in...], [group o, c, kernel...], [batch, group o, out...]
  int64_t group = 1;
  Windows windows;
  bool channels_last = false;      // x and y lie in memory as [batch, in..., channels]
  DType operands = DType::kFloat;  // the element type of what the direction reads

  int64_t batch() const { return x[0]; }
  int64_t ins() const { return w[1]; }           // channels of x in a group
  int64_t outs() const { return w[0] / group; }  // channels of y in a group
};

// The inputs and outputs of the node that hold x, w, y or their gradients; -1 where there is none.
struct Forward {
  int x, w, bias;  // inputs; output 0 is y
};
struct InputGradient {
  int dy, w;  // inputs; output 0 is dx
};
struct WeightGradient {
  int x, dy;  // inputs; output 0 is dw
  bool bias;  // output 1 is the sum of dy over all but its channels
};

// Float32 results of float32 or bfloat16 operands, y and dx also in bfloat16, by oneDNN: x and y channels last where
// they lie so, else reordered to and from the layouts it likes best; weights always reordered.
Prepared prepare_fast(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_fast(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_fast(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

// Channels last, where it pays on this machine: outer products of panels.
bool takes_outer_products(const Convolution& c);
Prepared prepare_outer_products(const Convolution& c, const WeightGradient& f, int threads);

// Bfloat16 channels last, where it pays on this machine: one product of what the windows read, side by side.
bool takes_patches(const Convolution& c);
Prepared prepare_patches(const Convolution& c, const WeightGradient& f);

// Small images channels last, where it pays on this machine: without what is padding.
bool is_small_images(const Convolution& c, bool gradient);
Prepared prepare_small_images(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_small_images(const NodeSpec& spec, const Convolution& c, const InputGradient& f);

// Float32 channels last, where it pays on this machine: on AMX.
bool takes_amx(const Convolution& c);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

// Any size, float32 or float64, channels first: windows laid out as the columns of a matrix, then BLAS.
Prepared prepare_plain(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_plain(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_plain(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

}  // namespace onnx_train::cpu
