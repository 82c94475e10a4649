// Positions of the nodes of a graph at the time a pass began. Owned by the pass; one thread.
#pragma once

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

class Positions {
 public:
  explicit Positions(const Graph& graph) {
    int position = 0;
    for (const Node* node = graph.first(); node; node = node->next()) of_[node] = position++;
  }

  // Returns the position of a node; a new node has that of the next node with a position, which must exist.
  int of(const Node* node) const {
    while (!of_.contains(node) && node->next()) node = node->next();
    return of_.at(node);
  }
  // Gives a new node before `other` the position of `other`, which may then be removed.
  void add(const Node* node, const Node* other) { of_[node] = of(other); }

  // Whether the value is computed before `node` runs.
  bool is_before(const Value* value, const Node* node) const {
    return !value->producer() || of(value->producer()) < of(node);
  }

 private:
  NodeTable<int> of_;
};

}  // namespace onnx_train
