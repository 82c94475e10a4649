#include "kernels/lowering/support/lowering.h"

namespace onnx_train {

bool remove_dead_nodes(Model& model) {
  Graph& graph = *model.graph;
  bool changed = false;
  Node* previous = nullptr;
  for (Node* node = graph.last(); node; node = previous) {
    previous = node->previous();
    bool used = false;
    for (const Value* output : node->outputs()) used |= output && (!output->uses().empty() || graph.is_output(output));
    if (used) continue;
    graph.remove(node);
    changed = true;
  }
  return graph.remove_unused_initializers() || changed;
}

}  // namespace onnx_train
