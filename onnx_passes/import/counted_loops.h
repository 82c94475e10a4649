// A Loop becomes a Scan over the numbers of its steps: one form of loops, in which each step has the same shapes. A
// condition that ends it before its largest number of steps is a state of the Scan, and each step an If. One caller
// owns the graph.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the Loops of the graph and of its subgraphs whose values keep their types from step to step and whose
// condition is always true, or which have a constant largest number of steps and stack no results; others stay. Infers
// the nodes after them again. `replaced` is told each node's label. Throws Error if what follows does not fit.
void replace_counted_loops(Graph* graph, const std::function<void(const std::string&)>& replaced);

}  // namespace onnx_train
