// Another order of a graph's nodes in which groups of them stand in one piece.
#pragma once

#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Moves the nodes of each group, given in their order, to where its last one stood; everything else keeps its order as
// far as the graph allows. No path may lead from a group through other nodes back into it. Groups may be empty.
void bring_together(Graph* graph, const std::vector<std::vector<Node*>>& groups);

}  // namespace onnx_train
