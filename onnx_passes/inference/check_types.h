// Checks the element types of a node's inputs against ONNX's schema. A pure function; the graph must not change during
// the call.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Throws Error that names the node if an input has an element type that the schema does not allow, or if two inputs
// differ that the schema requires to be equal. Ignores unknown types and operators without a schema, and takes float64
// where ONNX names float32 alone.
void check_types(Node* node);

// The second half of it, for graphs that may compute in float64 where ONNX names float32 alone (Celu): kernels read all
// such inputs as one type.
void check_equal_types(const Node& node);

}  // namespace onnx_train
