// A convolution and its two gradients on the CPU: one description, three directions, several implementations. The
// prepare_* functions run while a kernel is prepared; each returns a Prepared that the node owns and that runs on one
// thread at a time. They throw Error for shapes that the node does not support.
#pragma once

#include "kernels/geometry/convolutions.h"

namespace onnx_train::cpu {

// Input and output numbers of the node that hold x, w, y or their gradients; -1 when there is none.
struct Forward {
  int x, w, bias;  // inputs; output 0 is y
};
struct InputGradient {
  int dy, w;  // inputs; output 0 is dx
};
struct WeightGradient {
  int x, dy;  // inputs; output 0 is dw
  bool bias;  // output 1 is the sum of dy over all axes but channels
};

// oneDNN: float32 results of float32 or bfloat16 operands; y and dx may also be bfloat16. Channels-last tensors are
// read in place; others are reordered to and from the layout that oneDNN prefers. Weights are always reordered.
Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_onednn(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

// For the next ones, supports_* is true if the implementation computes the convolution, on this machine, and could be
// the fastest; prefers_* is the rule where nothing is timed (kernels/choices/fastest.h).

// Channels last: outer products of packed panels (wgrad_direct.cc).
bool supports_wgrad_direct(const Convolution& c);
bool prefers_wgrad_direct(const Convolution& c);
Prepared prepare_wgrad_direct(const Convolution& c, const WeightGradient& f, int threads);

// bfloat16, channels last: im2col and one matrix product (wgrad_im2col.cc).
bool supports_wgrad_im2col(const Convolution& c);
bool prefers_wgrad_im2col(const Convolution& c);
Prepared prepare_wgrad_im2col(const Convolution& c, const WeightGradient& f);

// Small channels-last images: skips padded taps (direct.cc).
bool supports_direct(const Convolution& c, bool gradient);
bool prefers_direct(const Convolution& c, bool gradient);
Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_direct(const NodeSpec& spec, const Convolution& c, const InputGradient& f);

// float32, channels last: AMX (amx_convolution.cc, amx_wgrad.cc).
bool supports_amx(const Convolution& c);
bool prefers_amx(const Convolution& c);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_amx(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

// float32, channels last, where there is no oneDNN: im2col and BLAS (blas_convolution.cc).
Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_blas(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

// Any size, float32 or float64, channels first: im2col and BLAS (reference.cc).
Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const Forward& f);
Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const InputGradient& f);
Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const WeightGradient& f);

}  // namespace onnx_train::cpu
