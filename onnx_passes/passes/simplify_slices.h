// The sum of the gradients of slices that share a tensor out among them is a Concat.
#pragma once

#include <functional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// `node` ends a sum, by Adds, of SliceGrads along one axis. Where their slices follow each other from the axis's first
// element to its last, each element of the sum is one of a slice and zeros: returns the slices' gradients one behind
// the other, made in front of the node. Null otherwise, and where a place `varies` from step to step. Exporters cut
// weights so to bring gates into ONNX's order.
Value* join_slices(Node* node, const std::function<bool(const Value*)>& varies);

}  // namespace onnx_train
