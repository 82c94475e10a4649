// Who reads a value: what patterns ask before they take it away.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// One node reads the value, through one of its inputs, and the graph does not give it out.
inline bool is_read_once(const Value* value) { return value->uses().size() == 1 && !value->graph().is_output(value); }

// The node that does; null where there are others.
inline Node* only_reader(const Value* value) { return is_read_once(value) ? value->uses()[0].node : nullptr; }

}  // namespace onnx_train
