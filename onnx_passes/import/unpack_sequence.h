// Sequences as torch exports them: a tensor is split into a sequence and its parts are extracted again. A function on a
// graph that one caller owns.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Converts a SplitToSequence with inferred types, of which only parts with known indices are read, to a Split. Returns
// whether the node was replaced.
bool unpack_sequence(Node* node);

}  // namespace onnx_train
