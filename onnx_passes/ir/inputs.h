// What a node reads, looking into its subgraphs. A plain function over a graph that must not change meanwhile.
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

// Calls `f` with every value that the node reads, those read inside its subgraphs included.
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
