// Replaces calls of functions by the functions' bodies. One thread at a time may use the graph.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Copies the body of `function` into `graph` before `before`, reading `inputs`; returns its outputs. `attributes` (of a
// node) replace the body's attribute references. Names start with `prefix`.
std::vector<Value*> instantiate(const onnx::FunctionProto& function, const onnx::NodeProto& attributes, Graph* graph,
                                Node* before, const std::vector<Value*>& inputs, const std::string& prefix);

// Appends a copy of the nodes of `from` to `graph`. `inputs` are those of `from`, then its initializers, which are not
// copied; returns the outputs. Names start with `prefix`.
std::vector<Value*> instantiate(const Graph& from, Graph* graph, const std::vector<Value*>& inputs,
                                const std::string& prefix);

// Replaces a call by the body of the model's function, of standard_bodies.h or of ONNX's schema. Returns false if there
// is no body.
bool inline_function(Node* node);
bool has_function_body(const Node& node);

// The function of the model that `node` calls; null if it is not a call.
const onnx::FunctionProto* function_of(const Node& node);

}  // namespace onnx_train
