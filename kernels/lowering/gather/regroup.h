// Reorders a graph such that the nodes of given groups are adjacent. Called by passes, on one thread.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Moves the nodes of each group, given in their order, to the position of its last node; all other nodes keep their
// order as far as the graph allows. No path may lead from a group through other nodes back into it. Groups may be
// empty.
void regroup(Graph* graph, const std::vector<std::vector<Node*>>& groups);

}  // namespace onnx_train
