// Element types of a node's inputs against ONNX's schema. A plain function over a graph that must not change meanwhile.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Throws Error that names the node when an input has an element type that the schema does not allow, or when two inputs
// differ that the schema wants alike. Types that are not known, and operators without a schema, are passed over.
void check_types(Node* node);

}  // namespace onnx_train
