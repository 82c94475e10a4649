// The nodes that linear_cross_entropy replaces. Pure functions; the caller's graph owns all nodes and values.
#pragma once

#include <optional>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct LinearLoss {
  Node *loss = nullptr, *gradient = nullptr;  // no gradient: an evaluation
  Node* place = nullptr;                      // before which the call has all that it reads, once `hoisted` are there
  std::vector<Node*> hoisted;                 // what dloss needs, in order
  Value *h = nullptr, *w = nullptr, *bias = nullptr;
  int64_t class_axis = 0, classes = 0;  // of w
  double scale = 1, cap = 0;            // cap 0: none
  DType rounding = DType::kUndefined;   // of the product, its gradient and the logits
  std::vector<Node*> hits;              // Equal of labels and the largest logits, for labels that count
  std::vector<Node*> scores;            // LabelScores of the same labels
  // The gradients of h, w and the bias; null where nothing makes them.
  Value *dh = nullptr, *dw = nullptr, *dbias = nullptr;

  Value* dloss() const { return gradient ? gradient->input(0) : nullptr; }
};

// Returns what to replace if `loss` is a cross entropy of such logits, large enough to gain by it.
std::optional<LinearLoss> find_linear_loss(Node* loss);

}  // namespace onnx_train
