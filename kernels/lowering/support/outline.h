// Outlining, the basis of fusion in lowering: nodes become the body of a new function, and a call of it takes their
// place. The body defines what the call means; a kernel may run it as one operation, and `inline_function` reverses it.
// Called by passes, on one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Whether the value is a scalar initializer (one element, rank 0), which a body that reads it holds as a Constant node.
bool is_scalar_constant(const Value& value);

// Replaces `nodes`, in graph order, by one call of the function onnx_train.`op` with a new overload. Returns the call.
// Values read from outside become inputs of the call, in the order of their first reads, except scalar constants, which
// are copied into the body. Values read outside, or outputs of the graph, become outputs of the call and keep their
// names. Other nodes between the first and the last that depend on the group move
// after the call. The group must be convex: throws Error if a path between two of the nodes leaves the group.
Node* outline(const std::vector<Node*>& nodes, const std::string& op);

// Returns an empty function onnx_train.`op` with an unused overload, importing the opsets of the model. The caller
// fills it and then adds it to the context.
std::shared_ptr<onnx::FunctionProto> new_function(Context* context, const std::string& op);

// Appends to = Cast <to = dtype> (from) to the body of a function.
void add_cast(onnx::FunctionProto* function, const std::string& from, const std::string& to, DType dtype);

}  // namespace onnx_train
