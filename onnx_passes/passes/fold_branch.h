// An If whose condition is known gives way to one of its branches. A function on a graph that one caller owns; throws
// nothing of its own.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Where `node` is an If with a known condition, the nodes of the branch that it takes are put in its place, the
// branch's initializers become its graph's, and true is returned: the node is gone. A name that is taken outside gets
// the branch's attribute before it: "then_branch/weight". `taken` is set to that attribute.
bool fold_branch(Node* node, std::string* taken);

// Removes what only folded branches needed: nodes whose results nothing reads, then initializers. True if there were
// any.
bool remove_unread(Graph* graph);

}  // namespace onnx_train
