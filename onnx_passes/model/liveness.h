// The values and nodes that some outputs depend on. A plain value; the graphs must not change meanwhile.
#pragma once

#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

class Liveness {
 public:
  void need(const Value* value) { values_.insert(value); }

  // Follows dependencies through one graph; call it for a graph before its parent.
  void trace(const Graph& graph) {
    for (const Node* node = graph.last(); node; node = node->previous()) {
      bool live = false;
      for (const Value* output : node->outputs()) live = live || (output && values_.contains(output));
      if (!live) continue;
      nodes_.insert(node);
      for_each_input(*node, [&](const Value* v) { values_.insert(v); });
    }
  }

  bool needs(const Value* value) const { return values_.contains(value); }
  bool runs(const Node* node) const { return nodes_.contains(node); }

 private:
  Marks<Value> values_;
  Marks<Node> nodes_;
};

}  // namespace onnx_train
