// The values that a node reads, including those read in its subgraphs. A pure function; the graph must not change
// during the call.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Calls `f` with every value that the node or a node in its subgraphs reads.
template <typename F>
void for_each_input(const Node& node, const F& f) {
  for (const Value* input : node.inputs()) {
    if (input) f(input);
  }
  for (const auto& subgraph : node.subgraphs()) {
    for (const Node* n = subgraph.graph->first(); n; n = n->next()) for_each_input(*n, f);
    for (const Value* output : subgraph.graph->outputs()) f(output);
  }
}

}  // namespace onnx_train
