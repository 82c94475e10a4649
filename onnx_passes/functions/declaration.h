// Declares a function of ours in a model whose nodes call it already. One thread owns the model.
#pragma once

#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Adds the function of a row (functions.h) whose body is the same for every call, in the context's opset.
void declare_function(Context& context, const std::string& op);

}  // namespace onnx_train
