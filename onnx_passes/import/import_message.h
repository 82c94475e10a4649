// The part of importing that rewrites the message before there is an IR: constructs that the IR cannot represent get
// another form. Functions on a message that one caller owns; they throw Error that names the node or tensor if there is
// no other form.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

// Inlines calls of the model's functions, but for those that keep their calls (declaration.h).
void inline_functions(onnx::ModelProto* model);

// Converts sparse initializers and sparse values of Constant nodes to dense ones.
void densify(onnx::ModelProto* model);

}  // namespace onnx_train
