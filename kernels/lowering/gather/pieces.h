// Nodes that split or join a tensor along its outermost axis of size greater than 1: each piece is contiguous in the
// tensor's memory. Pure functions; any thread.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The byte offsets of the pieces in the tensor: outputs of a Split, the output of a Slice, inputs of a Concat. Empty
// for other nodes, and if a piece is not contiguous or its position is not known.
std::vector<size_t> piece_offsets(const Node& node);

}  // namespace onnx_train
