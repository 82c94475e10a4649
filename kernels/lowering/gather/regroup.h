// Makes the nodes of given groups adjacent in the graph. Called by passes, on one thread.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Moves the nodes of each group, given in graph order, to the position of its last node; all other nodes keep their
// order as far as dependencies allow. No path may leave a group and return to it. Groups may be empty.
void regroup(Graph* graph, const std::vector<std::vector<Node*>>& groups);

}  // namespace onnx_train
