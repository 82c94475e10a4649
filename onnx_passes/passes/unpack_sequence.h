// Sequences as torch exports them: a tensor is split into a sequence whose parts are taken out again. A function on a
// graph that one caller owns.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// A SplitToSequence whose types are inferred, and of which only known parts are read, becomes a Split. Returns whether
// the node is gone.
bool unpack_sequence(Node* node);

}  // namespace onnx_train
