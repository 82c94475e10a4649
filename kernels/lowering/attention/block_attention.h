// Attention without a matrix of all scores. Runs on the thread that builds a plan.
#pragma once

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

class Device;

// Replaces attention with at least `least_keys` keys by BlockAttention, and its backward pass by BlockAttentionGrad
// (kernels/functions/attention.cc). With `through_roundings`, also drops the roundings of mixed precision between its
// products: values that are not stored need no rounding.
bool block_attention(Model& model, int64_t least_keys, bool through_roundings = false);

// Returns the attributes of a BlockAttention or BlockAttentionGrad.
Attrs attention_attributes(const Node& call);

// Simplifies the masks of these calls. A mask that depends on constants becomes a constant, with a single plane if all
// batch elements are equal, and is removed if it hides nothing: exporters write a causal mask as a comparison of
// positions. With `makes_finite`, a bool mask that hides keys by -inf becomes an added mask. Where the attention guards
// against entirely hidden rows, its -inf becomes -1e30 and other values at least -1e28, so that the highest score of
// such a row identifies it.
bool simplify_masks(Model& model, bool makes_finite);

// Makes these calls read queries, keys and values from the result of one product, and write their gradients into the
// operand of one product, where `device` has a kernel.
bool pack_attention(Model& model, const Device& device);

}  // namespace onnx_train
