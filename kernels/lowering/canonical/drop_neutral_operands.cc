// Exporters, losses and rules of gradients write products by one and sums with zero: a factor of a loss that is left at
// its default, an epsilon of zero, a mask that hides nothing. In the plan of a training a weight is a state and no
// constant, so a scale that starts at one stays.
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// The input that the result of the node equals, or null. A neutral operand that broadcasts the other one changes it.
// x + 0 makes 0 of -0.
Value* unchanged_input(const Node& node) {
  if (node.is("Neg")) {
    const Node* inner = node.input(0)->producer();
    return inner && inner->is("Neg") ? inner->input(0) : nullptr;
  }
  const NeutralOperand& neutral = operator_of(node).neutral;
  for (int i = neutral.at.begin; i < neutral.at.end; ++i) {
    Value* const other = node.input(1 - i);
    if (same(other->type(), node.output()->type()) && constant_of(node.input(i)).holds_only(neutral.number))
      return other;
  }
  return nullptr;
}

}  // namespace

bool drop_neutral_operands(Model& model) {
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    Value* const input = unchanged_input(*node);
    if (!input || model.graph->is_output(node->output())) continue;
    model.graph->replace(node->output(), input);
    model.graph->remove(node);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
