// Functions of ours in a model whose nodes call them already. One thread owns the model.
#pragma once

#include <string_view>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Whether a forward model may call the operator of ours, whose gradient is not that of its body: exporting and
// importing leave its calls as they are.
bool keeps_its_calls(std::string_view domain, std::string_view op);

// Adds the function that the node calls, in the opset of its graph. Throws Error if the node says two bodies.
void declare_function(const Node& node);

}  // namespace onnx_train
