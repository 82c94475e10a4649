// Attention without a matrix of all scores. Runs on the thread that builds a plan.
#pragma once

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

class Device;

// Replaces attention with at least `least_keys` keys by BlockAttention, and its backward pass by BlockAttentionGrad
// (kernels/functions/attention.cc). With `through_roundings`, also where mixed precision rounds between its products:
// what is never stored is then not rounded either.
bool block_attention(Model& model, int64_t least_keys, bool through_roundings = false);

// The attributes of such a call.
Attrs attention_attributes(const Node& call);

// The masks of such calls. One that constants determine becomes a constant itself, one for all batch elements where
// they are equal, or goes if it hides nothing: exporters write a causal mask as a comparison of positions. With
// `makes_finite`, a bool mask that hides keys by -inf becomes one that is added, and numbers that hide a key become
// -1e30 where the attention guards against rows that are hidden entirely, whose highest score then tells; scores are as
// hidden as before.
bool simplify_masks(Model& model, bool makes_finite);

// Such calls read queries, keys and values where one product has written them, and write their gradients where one
// reads them, where `device` has such a kernel.
bool pack_attention(Model& model, const Device& device);

}  // namespace onnx_train
