// Bodies of functions in place of their calls.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Copies the body of `function` into `graph` before `before`, with `inputs` for its inputs; returns its outputs.
// `attributes` (a node's) are put in place of the body's references to them. Names start with `prefix`.
std::vector<Value*> instantiate(const onnx::FunctionProto& function, const onnx::NodeProto& attributes, Graph* graph,
                                Node* before, const std::vector<Value*>& inputs, const std::string& prefix);

// Replaces a call by the function's body: of the model, or of ONNX's schema where it has one. False if there is none.
bool inline_function(Node* node);
bool has_function_body(const Node& node);

}  // namespace onnx_train
