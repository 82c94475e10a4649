// The sizes that a Slice and a Pad keep where ONNX's inference leaves all open because one is not known: of axes that
// they do not name, and of those where they neither cut nor add. Pure functions; any thread.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// The output has the input's rank.
void refine_slice(Node* node);
void refine_pad(Node* node);

}  // namespace onnx_train
