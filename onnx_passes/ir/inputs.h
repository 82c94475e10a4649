// The values that nodes and subgraphs read. Pure functions; the graph must not change during the call.
#pragma once

#include <algorithm>
#include <vector>

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

// The values of other graphs that the subgraph, or the node's subgraphs, read, each once, in the order of their first
// uses.
inline void add_read_from_outside(const Graph& subgraph, std::vector<Value*>* outer) {
  const auto add = [&](const Value* v) {
    const Graph* g = &v->graph();
    while (g && g != &subgraph) g = g->parent();
    if (!g && std::find(outer->begin(), outer->end(), v) == outer->end()) outer->push_back(const_cast<Value*>(v));
  };
  for (const Node* node = subgraph.first(); node; node = node->next()) for_each_input(*node, add);
  for (const Value* output : subgraph.outputs()) add(output);
}
inline std::vector<Value*> read_from_outside(const Graph& subgraph) {
  std::vector<Value*> outer;
  add_read_from_outside(subgraph, &outer);
  return outer;
}
inline std::vector<Value*> read_from_outside(const Node& node) {
  std::vector<Value*> outer;
  for (const auto& subgraph : node.subgraphs()) add_read_from_outside(*subgraph.graph, &outer);
  return outer;
}

}  // namespace onnx_train
