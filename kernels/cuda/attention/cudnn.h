// Attention by cuDNN, on tensor cores: rows of BlockAttention and BlockAttentionGrad that precede ours (attention.cu).
//
// They run where q, k and v are stored in one 16-bit type, with at most two batch axes, and where the library has a
// deterministic algorithm with a workspace of at most 2 GiB. The gradients need one for the gradients of all scores, in
// 16 bits: those of longer sequences are made of a part of the batch or of the heads at a time. What else the node has
// in float32 (y in a step of gemm-bf16; gradients that element-wise nodes read) passes through 16 bits: the library has
// no other results.
//
// Gradients run there for numbers of keys that a device, or the library's developers, have shown right: with an added
// mask for multiples of 128, without one for any that leaves no 64 over (has_right_gradients in cudnn.cc).
//
// Masks are
//   - none,
//   - causal: constant, and query i sees keys 0 to i; hidden scores are -1e28 or less, so that their probabilities
//     are 0 beside any visible score that is not as low;
//   - added float32 numbers. Where the attention guards against rows that they hide entirely, they are finite, and the
//     rows are found by their highest scores (the attribute `hidden`): what the library computes for a row of -inf
//     differs among its algorithms. A kernel of ours sets those rows to 0.
// Scores, sums and statistics are float32. The library rounds probabilities and their gradients to the 16-bit type in
// front of its other products, as its tensor cores read them. Operands that are not finite may give other results than
// the bodies: a hidden key does not count, even if it is NaN.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> cudnn_attention_kernels();

}  // namespace onnx_train::cuda
