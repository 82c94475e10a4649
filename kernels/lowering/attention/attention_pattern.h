// Finds attention by its structure, as exporters and gradient rules write it:
//
//   scores = q kᵀ, times a scalar (or q is), plus a mask or selected by a bool mask
//   y = softmax(scores) v; some exporters replace NaN probabilities by 0
//   dv = Pᵀ dy,  dP = dy vᵀ,  dS = SoftmaxGrad(dP, P),  dq = dS k,  dk = dSᵀ q     in training
//
// Operands may have the transposes that fold_transposes leaves. The result refers to nodes of the graph and is valid
// until the graph changes; one thread at a time may use the graph.
#pragma once

#include <optional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A tensor and the order of its axes. For an operand, `permutation` maps its axes in memory to [batch.., rows,
// columns]; for a result, it maps these to the axes in memory.
struct AttentionOperand {
  Value* value = nullptr;
  std::vector<int64_t> permutation;
};

struct Attention {
  AttentionOperand q, k, v, y;
  float scale = 1;
  Value* mask = nullptr;
  float fill = 0;           // value of the scores that a bool mask hides
  bool keeps_true = false;  // whether scores are kept where the mask is true
  bool nan_safe = false;

  bool trains = false;
  AttentionOperand dy, dq, dk, dv;

  // All nodes of the attention, which alone read the values between them.
  std::vector<Node*> nodes;
  Node* pv_product = nullptr;  // the product with v: all operands of the forward part precede it
  // All operands of the backward part precede the earlier of these two.
  Node *dp_product = nullptr, *dv_product = nullptr;
};

// Returns the attention around a Softmax; nothing if the structure differs, or if another node reads scores or
// probabilities. Requires float32, known shapes, no empty tensors, and contiguous rows of q, k, v and all gradients.
// With `through_roundings`, the nodes may include casts by which mixed precision rounds scores, probabilities and their
// gradients to 16 bits.
std::optional<Attention> find_attention(Node* softmax, bool through_roundings);

}  // namespace onnx_train
