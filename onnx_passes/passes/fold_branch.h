// Replaces an If with a known condition by one of its branches. A function on a graph that one caller owns; throws
// nothing of its own.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// If `node` is an If with a known condition, replaces it by the nodes of the selected branch, moves the branch's
// initializers to the graph and returns true; the node no longer exists. A name that is in use is prefixed by the
// branch's attribute: "then_branch/weight". Sets `taken` to that attribute.
bool fold_branch(Node* node, std::string* taken);

// Removes what only folded branches needed: nodes whose results are not read, then initializers. Returns whether there
// were any.
bool remove_unread(Graph* graph);

}  // namespace onnx_train
