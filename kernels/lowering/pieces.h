// Nodes that take a tensor apart, or put one together, along its outermost axis of more than one element: each piece
// lies in one stretch of the tensor's memory.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// How many bytes behind the tensor's begin its pieces lie: the outputs of a Split, the output of a Slice, the inputs of
// a Concat. Empty for other nodes, and where a piece is several stretches or its place is not known.
std::vector<size_t> piece_offsets(const Node& node);

}  // namespace onnx_train
