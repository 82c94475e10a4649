// Converts a model to float64, for verification. Every float32 tensor, type, constant, cast target and generator dtype
// becomes float64, also in subgraphs, functions and entry points. Float attributes stay, because ONNX has no others,
// and so do inputs that are float32 for every operand type (the scales of Resize). Other types do not change. A pass on
// a model that one caller owns.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

void convert_to_double(onnx::ModelProto* model);

}  // namespace onnx_train
