// How lowering fuses: nodes become the body of a new function, and one call of it takes their place. The body is what
// the call means; a kernel may run it in one piece, `inline_function` takes it back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces `nodes` by one call of the function onnx_train.`op` with an overload of its own. Returns the call.
//
// `nodes` are given in the order of their graph. What they read from outside are the call's inputs, in the order in
// which it is first read; scalars that are initializers (one element, rank 0) go into the body as Constant nodes. What
// is read outside, or is an output of the graph, are the call's outputs; they keep their names. Other nodes that stand
// between the first and the last and depend on them move behind the call, so that the group must be convex: throws
// Error when a path leads from one of the nodes to another through a node that is not among them.
Node* outline(const std::vector<Node*>& nodes, const std::string& op);

// An empty function onnx_train.`op` with an overload that no other has, importing what the model does. Once it is
// filled, the caller adds it to the context.
std::shared_ptr<onnx::FunctionProto> new_function(Context* context, const std::string& op);

// The function that `node` calls; null when it is no call.
const onnx::FunctionProto* function_of(const Node& node);

}  // namespace onnx_train
