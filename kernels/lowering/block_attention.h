// Attention without a matrix of all scores.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Attention on 256 keys or more becomes BlockAttention, and its backward pass BlockAttentionGrad
// (functions/attention.cc). Behind fold_transposes.
bool block_attention(Model& model);

}  // namespace onnx_train
