// Copies nodes from one graph into another. One caller owns both graphs. Throws Error only if the graph that is copied
// is not valid.
#pragma once

#include <string>
#include <unordered_map>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

class GraphCopy {
 public:
  // Nodes are added to `to` before `before`, at the end if null. A copy has the name of its value if it is free in
  // `to`, else `prefix` comes before the name.
  explicit GraphCopy(Graph* to = nullptr, Node* before = nullptr, std::string prefix = "")
      : to_(to), before_(before), prefix_(std::move(prefix)) {}

  // Nodes that read `from` are copied to read `to`.
  void map(const Value* from, Value* to) { copies_[from] = to; }
  // What stands for `value`: its copy, or the value itself, of an outer graph, if there is none.
  Value* of(const Value* value) const;

  // The graph's initializers, which share their contents, and its nodes. Its inputs are those that are mapped.
  void contents(const Graph& from);
  // The node and its subgraphs.
  Node* node(const Node& node);
  // The whole graph, with inputs and outputs, into `to`, which is empty.
  void graph(const Graph& from, Graph* to);

 private:
  Value* record(const Value* from, Value* to);
  Node* node(const Node& node, Graph* to, Node* before, const std::string& prefix);

  Graph* to_;
  Node* before_;
  std::string prefix_;
  std::unordered_map<const Value*, Value*> copies_;
};

// Makes `value` an output of the graph; through an Identity unless it is the result of a node there, and of no other
// output.
void add_result(Graph* graph, Value* value);

}  // namespace onnx_train
