#include "onnx_passes/distribution/order_collectives.h"

#include "onnx_passes/inference/fold_branch.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

bool is_collective(const Node& node) { return operator_of(node).after >= 0; }

int64_t exchanged_bytes(const Value& value) {
  return num_elements(value.type().shape()) * static_cast<int64_t>(size_of(value.dtype()));
}

void order_collectives(Model* flat) {
  Value* before = nullptr;
  for (Node* node = flat->graph->first(); node; node = node->next()) {
    if (!is_collective(*node)) continue;
    if (before) node->set_input(operator_of(*node).after, before);
    before = node->output();
  }
  remove_unread(flat->graph.get());
}

}  // namespace onnx_train
