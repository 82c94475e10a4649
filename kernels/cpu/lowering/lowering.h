// Rewrites that only the CPU wants, beside those of kernels/lowering.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train::cpu {

// What is chosen among bfloat16 numbers (Relu, its gradient, ..) is one itself: it is rounded once, and whoever reads
// it reads the rounded one, so that no float32 copy is kept.
bool round_once(Model& model);

// Relu, or Add and Relu, become part of the batch normalization before them; so do their gradients.
bool fuse_batch_normalization(Model& model);

// Images lie channels last in memory, [batch, sizes.., channels], through whole regions of convolutions.
bool channels_last(Model& model);

// What only moves elements moves bfloat16 ones where they are widened first: 16 bits each, and a product behind it
// finds its operand narrow. Behind fold_transposes, which looks for transposes right in front of products.
bool move_bfloat16(Model& model);

// A product or convolution of two widened bfloat16 tensors takes them narrow: MatMul(Cast(a), Cast(b)), with nothing
// but views between, becomes Bfloat16MatMul(a, b) (functions/precision.cc). Float32 sums and results, as before. Comes
// behind the passes that choose layouts and fold transposes. Changes nothing where the CPU has no bfloat16 products:
// there float32 ones are faster.
bool bfloat16_products(Model& model);

// A widened value is made anew for each of its readers: what lives from the forward to the backward pass is the
// bfloat16 one, and an element-wise kernel may take the cast over.
bool widen_at_readers(Model& model);

// What is moved before it is narrowed to bfloat16 is narrowed first: 16 bits move, and the casts come to stand right
// behind the kernels that can write bfloat16 themselves. Behind widen_at_readers, and without dead nodes around.
bool narrow_before_moves(Model& model);

// A kernel that can read bfloat16 and write it takes the casts around its node over: Cast, Softmax, Cast becomes one
// Bfloat16Softmax, which computes in float32 as before and rounds as the cast did. Behind widen_at_readers.
bool narrow_storage(Model& model);

// The same for LSTM, GRU and RNN, forward and backward, which mixed precision has told to round their operands: their
// products then take bfloat16 ones, and sum in another order.
bool bfloat16_recurrences(Model& model);

}  // namespace onnx_train::cpu
