// The order in which the nodes of a graph stood when a pass began. Owned by the pass; one thread.
#pragma once

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

class Positions {
 public:
  explicit Positions(const Graph& graph) {
    int position = 0;
    for (const Node* node = graph.first(); node; node = node->next()) of_[node] = position++;
  }

  // A new node has the position of the next one in the graph that has a position, if there is one.
  int of(const Node* node) const {
    while (!of_.contains(node) && node->next()) node = node->next();
    return of_.at(node);
  }
  // Gives a new node the position of `other`, before which it stands and which may be removed then.
  void add(const Node* node, const Node* other) { of_[node] = of(other); }

  // Whether the value is there when `node` runs.
  bool is_before(const Value* value, const Node* node) const {
    return !value->producer() || of(value->producer()) < of(node);
  }

 private:
  NodeTable<int> of_;
};

}  // namespace onnx_train
