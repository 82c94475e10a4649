// A Loop that runs a number of times that is known before its first step becomes a Scan over the numbers of its steps.
// Afterwards there is one form of such loops, and each step has the same shapes. One caller owns the graph.
#pragma once

#include <functional>
#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Replaces the Loops of the graph and of its subgraphs whose condition is always true and whose values keep their types
// from step to step; others stay. Infers the nodes after them again. `replaced` is told each node's label. Throws Error
// if what follows does not fit.
void replace_counted_loops(Graph* graph, const std::function<void(const std::string&)>& replaced);

}  // namespace onnx_train
