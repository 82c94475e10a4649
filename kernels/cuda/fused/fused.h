#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train::cuda {

// Whether a generated kernel may contain the node; always false without a compiler. The pass fuse_elementwise asks this
// function, so every node that it makes can be prepared.
bool can_fuse(const Node& node);

}  // namespace onnx_train::cuda
