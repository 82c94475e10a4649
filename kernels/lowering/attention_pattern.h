// Attention as exporters and gradient rules write it, found by structure:
//
//   scores = q kᵀ, times a number (or q is), plus a mask or where a mask keeps them
//   y = softmax(scores) v, with 0 for probabilities that are NaN where the exporter guards against them
//   dv = Pᵀ dy,  dP = dy vᵀ,  dS = SoftmaxGrad(dP, P),  dq = dS k,  dk = dSᵀ q     when the step trains
//
// with the transposes that fold_transposes has left at their ends.
#pragma once

#include <optional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A tensor and the order of its axes: of one that is read, `permutation` takes its axes in memory to [batch.., rows,
// columns]; of one that is written, the other way round.
struct AttentionOperand {
  Value* value = nullptr;
  std::vector<int64_t> permutation;
};

struct Attention {
  AttentionOperand q, k, v, y;
  float scale = 1;
  Value* mask = nullptr;
  float fill = 0;           // of scores that a bool mask does not keep
  bool keeps_true = false;  // whether it keeps those where it is true
  bool guarded = false;

  bool trains = false;
  AttentionOperand dy, dq, dk, dv;

  // All nodes of it. Nobody else reads what is between them.
  std::vector<Node*> nodes;
  Node* mixing = nullptr;  // the product with v: everything that the forward part reads is there
  Node *dp_product = nullptr, *dv_product = nullptr;  // the first of them: likewise for the backward part
};

// The attention around a Softmax; nothing when it is something else, or somebody reads scores or probabilities. float32
// of known shapes without empty tensors, the rows of q, k, v and of all gradients in one piece of memory.
std::optional<Attention> find_attention(Node* softmax);

}  // namespace onnx_train
