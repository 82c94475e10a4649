// Attention without a matrix of all scores.
#pragma once

#include "kernels/lowering/lowering.h"

namespace onnx_train {

// Attention becomes BlockAttention, and its backward pass BlockAttentionGrad (functions/attention.cc): where that is
// faster, or where `options.memory` makes the plan save memory. Behind fold_transposes.
bool block_attention(Model& model, const LoweringOptions& options);

}  // namespace onnx_train
