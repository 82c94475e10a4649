// What importing does to the message, before there is an IR: what the IR has no form for gets another one. Plain
// functions on a message that one caller owns; Error names the node or tensor that has no other form.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Calls of the model's functions become the nodes of their bodies.
void inline_functions(onnx::ModelProto* model);

// Sparse initializers and the sparse values of Constant nodes become dense ones.
void densify(onnx::ModelProto* model);

}  // namespace onnx_train
