// Replaces an If with a known condition by one of its branches. A function on a graph that one caller owns; throws
// nothing of its own.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the If `node` by the nodes of its branch of this attribute, moves the branch's initializers to the graph and
// returns true; the node no longer exists. A name that is in use is prefixed by the attribute: "then_branch/weight".
// Returns false if the branch is not there.
bool take_branch(Node* node, const std::string& attribute);

// If `node` is an If with a known condition, takes the branch that it selects and returns true. Sets `taken` to its
// attribute.
bool fold_branch(Node* node, std::string* taken);

// Removes what nothing reads any more: nodes whose results are not read, then initializers. Returns whether there were
// any.
bool remove_unread(Graph* graph);

}  // namespace onnx_train
