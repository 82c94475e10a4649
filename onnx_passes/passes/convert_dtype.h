// A model whose floats are doubles: what verification compares in. Every float32 tensor, type, constant, cast target
// and generator's dtype becomes float64, in subgraphs, functions and entry points too; float attributes stay as they
// are, since ONNX knows no others. Other types are left alone.
#pragma once

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

void convert_to_double(onnx::ModelProto* model);

}  // namespace onnx_train
