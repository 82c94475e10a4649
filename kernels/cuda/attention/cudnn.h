// Attention by cuDNN, on tensor cores: rows of BlockAttention and BlockAttentionGrad that precede ours (attention.cu).
//
// They require q, k and v in one 16-bit type with at most two batch axes, and a deterministic algorithm with a
// workspace of at most 2 GiB. The gradients need a workspace for the gradients of all scores, in 16 bits; for longer
// sequences they are computed for a part of the batch or of the heads at a time. Other float32 tensors of the node (y
// in a step of gemm-bf16; gradients that element-wise nodes read) are rounded to 16 bits, because the library has no
// float32 results.
//
// Gradients run for numbers of keys for which a device or the library's developers have shown them to be right: with an
// added mask multiples of 128, without one any number whose remainder by 128 is not 64 (has_right_gradients).
//
// Masks are
//   - none,
//   - causal: constant, and query i sees keys 0 to i; hidden scores are -1e28 or less, so that their probabilities
//     are 0 beside any visible score that is not as low;
//   - added float32 numbers. If the attention guards against rows that they hide entirely, the numbers are finite, and
//     such rows are found by their highest scores (the attribute `hidden`), because the library's algorithms differ for
//     a row of -inf. A kernel of ours sets those rows to 0.
// Scores, sums and statistics are float32. The library rounds probabilities and their gradients to the 16-bit type
// before its other products. Operands that are not finite may give other results than the bodies: a hidden key does not
// count, even if it is NaN.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

std::vector<Kernel> cudnn_attention_kernels();

}  // namespace onnx_train::cuda
