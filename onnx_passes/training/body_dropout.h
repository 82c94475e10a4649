// Dropout in the bodies of control flow, in training: each step of a Scan draws other numbers. One caller owns the
// graph.
#pragma once

#include <functional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the Dropouts for which `drops` is true in the subgraphs of the node by ones that draw from `key`, an outer
// value; their streams are numbered from `*stream` on. A Scan carries the key and changes it from step to step: another
// node takes its place. Returns the node that stands there now. Throws Error for a Dropout in a Loop.
Node* draw_in_subgraphs(Node* node, Value* key, const std::function<bool(const Node&)>& drops, int* stream);

// Whether a subgraph of the node has such a Dropout.
bool drops_inside(const Node& node, const std::function<bool(const Node&)>& drops);

}  // namespace onnx_train
