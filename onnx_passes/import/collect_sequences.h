// A Loop that appends one tensor to a sequence in each step, as exporters write a list that a loop fills, stacks these
// tensors as its own result instead. One caller owns the graph.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces such sequences of the Loops of the graph and of its subgraphs: those that are empty before the Loop, to
// which its body does nothing but one SequenceInsert at the end, and which ConcatFromSequence, SequenceAt and
// SequenceLength alone read after it. Returns whether there was one.
bool collect_sequences(Graph* graph);

}  // namespace onnx_train
