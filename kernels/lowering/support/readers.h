// The readers of a value, which patterns check before they remove it. Pure functions.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Whether exactly one input of one node reads the value, and it is not an output of the graph.
inline bool is_read_once(const Value* value) { return value->uses().size() == 1 && !value->graph().is_output(value); }

// Returns the node that reads the value if is_read_once, else null.
inline Node* only_reader(const Value* value) { return is_read_once(value) ? value->uses()[0].node : nullptr; }

}  // namespace onnx_train
