#include "kernels/lowering/canonical/branch_shapes.h"

#include <algorithm>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {
namespace {

// Whether a tensor with as many elements as `known` has its shape if it is of type `open`: one size is missing.
bool lacks_one_size(const TensorType& open, const TensorType& known) {
  if (!known.is_static() || open.dtype != known.dtype || !open.dims || open.rank() != known.rank()) return false;
  const auto is_size = [](const Dim& a, const Dim& b) { return a.known() && a.value() == b.value(); };
  int missing = 0;
  for (size_t i = 0; i < open.dims->size(); ++i) {
    const Dim &a = (*open.dims)[i], &b = (*known.dims)[i];
    if (!is_size(a, b) && (a.known() || ++missing > 1)) return false;
  }
  return missing == 1 && num_elements(known.shape()) > 0;
}

}  // namespace

bool give_one_shape(Graph* graph) {
  const auto& results = graph->outputs();
  const bool keeps = graph->parent() &&
                     std::all_of(results.begin(), results.end(), [](const Value* v) { return v->type().is_static(); });
  bool changed = false;
  for (Node* node : graph->nodes()) {
    for (const auto& subgraph : node->subgraphs()) changed = give_one_shape(subgraph.graph.get()) || changed;
    if (keeps) continue;
    if (!node->is("If")) continue;
    Graph* const branches[] = {node->subgraph("then_branch"), node->subgraph("else_branch")};
    if (!branches[0] || !branches[1]) continue;
    for (const int open : {0, 1}) {
      std::vector<Value*> outputs = branches[open]->outputs();
      const auto& others = branches[1 - open]->outputs();
      for (size_t i = 0; i < std::min(outputs.size(), others.size()); ++i) {
        if (!lacks_one_size(outputs[i]->type(), others[i]->type())) continue;
        Builder b(branches[open]);
        outputs[i] = reshape(b.var(outputs[i]), b.ints(others[i]->type().shape())).value();
        changed = true;
      }
      branches[open]->set_outputs(outputs);
    }
  }
  return changed;
}

}  // namespace onnx_train
