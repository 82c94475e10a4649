// A Loop becomes a Scan over the numbers of its steps: one form of loops, in which each step has the same shapes. A
// condition that ends it before its largest number of steps, if that is a constant and no results are stacked, is a
// state of the Scan, and each step an If. Any other condition is computed first, by a Loop that counts the steps and
// carries what the condition depends on: so the Scan's number of steps is found when it runs. One caller owns the
// graph.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the Loops of the graph and of its subgraphs whose values keep their types from step to step, and whose
// condition depends on no random numbers; others stay. Infers the nodes after them again. `replaced` is told each
// node's label. Throws Error if what follows does not fit.
void replace_counted_loops(Graph* graph, const std::function<void(const std::string&)>& replaced);

}  // namespace onnx_train
