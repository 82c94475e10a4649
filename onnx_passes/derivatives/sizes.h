// Which contents and sizes a plan knows before it runs. Pure functions of a graph; any thread.
#pragma once

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// The values that follow from constants and from shapes of values.
Marks<Value> known_to_plans(const Graph& graph);

// Whether a size of the value follows from contents that are computed: each run may find another one.
bool is_sized_by_data(const Value& value, const Marks<Value>& known);

}  // namespace onnx_train
