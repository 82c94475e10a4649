// Rounds a value once for all readers if rounding does not change it. The graph represents a rounded value by two
// casts: to bfloat16 or float16, and back to float32.
#include <algorithm>

#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/types/rounding.h"

namespace onnx_train {
namespace {

// Makes the readers of the node's first result read the rounded value, if both are equal.
bool round_for_all(Node* node) {
  Graph& graph = node->graph();
  Value* value = node->output();
  if (!value || graph.is_output(value) || widened_from(value)) return false;
  const std::vector<Use> uses = value->uses();
  const auto is_elsewhere = [&](const Use& use) { return &use.node->graph() != &graph; };
  if (uses.size() < 2 || std::any_of(uses.begin(), uses.end(), is_elsewhere)) return false;
  const auto first =
      std::find_if(uses.begin(), uses.end(), [](const Use& use) { return is_rounding_for_readers(*use.node); });
  if (first == uses.end()) return false;
  const DType dtype = first->node->output()->dtype();
  if (!holds_narrow(value, dtype)) return false;
  const auto rounds = [&](const Use& use) {
    return is_rounding_for_readers(*use.node) && use.node->output()->dtype() == dtype;
  };
  Builder b(&graph, node->next());
  b.set_name(first->node->output()->name());
  const Var narrow = cast(b.var(value), dtype), wide = cast(narrow, DType::kFloat);
  for (const Use& use : uses) {
    if (rounds(use)) {
      replace_node(use.node, {narrow});
    } else {
      use.node->set_input(use.index, wide.value());
    }
  }
  return true;
}

}  // namespace

bool round_once(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    changed = round_for_all(node) || changed;
    next = node->next();  // round_for_all may have removed the former next node
    changed = narrow_once(node) || changed;
  }
  return changed;
}

}  // namespace onnx_train
