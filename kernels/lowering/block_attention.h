// Attention without a matrix of all scores. Runs on the thread that builds a plan.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Replaces attention with at least `least_keys` keys by BlockAttention, and its backward pass by BlockAttentionGrad
// (kernels/functions/attention.cc). With `through_roundings`, also where mixed precision rounds between its products:
// what is never stored is then not rounded either. Runs after fold_transposes.
bool block_attention(Model& model, int64_t least_keys, bool through_roundings = false);

}  // namespace onnx_train
