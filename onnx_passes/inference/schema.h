// ONNX's schemas by node. Only .cc files include this header, because ONNX's own is large. Pure functions; any thread.
#pragma once

#include <onnx/defs/schema.h>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The schema of the node's operator in the version that the model imports; null if there is none.
const onnx::OpSchema* find_schema(const Node& node);

}  // namespace onnx_train
