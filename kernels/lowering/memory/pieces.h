// Nodes that split or join a tensor along its outermost axis of size greater than 1, so that each piece is contiguous.
// Pure functions; any thread.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Returns the byte offsets of the pieces in the tensor: outputs of a Split, the output of a Slice, inputs of a Concat.
// Returns nothing for other nodes, or if a piece is not contiguous or its position is unknown.
std::vector<size_t> piece_offsets(const Node& node);

}  // namespace onnx_train
