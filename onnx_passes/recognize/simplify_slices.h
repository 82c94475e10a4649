// Replaces the sum of the gradients of slices that partition a tensor by a Concat. A function on a graph that one
// caller owns.
#pragma once

#include <functional>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// `node` is the last Add of a sum of SliceGrads along one axis. If the slices cover the axis without gaps or overlaps,
// each element of the sum comes from one slice: returns the concatenation of the slices' gradients, inserted before the
// node. Returns null otherwise, and if a position `varies` from step to step. Exporters slice weights like this to
// bring gates into ONNX's order.
Value* join_slices(Node* node, const std::function<bool(const Value*)>& varies);

}  // namespace onnx_train
