// Moves 16-bit values instead of their float32 copies, and gives each reader a copy of its own.
#include <algorithm>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/types/widened.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// move(widen(x)) -> widen(move(x))
bool move_narrow(Node* node) {
  const int moved = num_moved(*node);
  if (moved == 0) return false;
  Builder b(&node->graph(), node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    Value* input = i < moved ? widened_from(node->input(i)) : node->input(i);
    if (i < moved && (!input || input->dtype() != widened_from(node->input(0))->dtype())) return false;
    inputs.push_back(b.var(input));
  }
  b.set_name(node->output()->name() + "/narrow");
  std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
  for (Var& output : outputs) output = cast(output, DType::kFloat);
  replace_node(node, outputs);
  return true;
}

// Gives each reader its own widening Cast, right before the reader.
bool widen_for_readers(Node* node) {
  Value* wide = node->output();
  Value* source = widened_from(wide);
  if (!source || node->graph().is_output(wide)) return false;
  const std::vector<Use> uses = wide->uses();
  const auto is_elsewhere = [&](const Use& use) { return &use.node->graph() != &node->graph(); };
  if (uses.empty() || std::any_of(uses.begin(), uses.end(), is_elsewhere)) return false;
  for (const Use& use : uses) {
    if (use.node->input(use.index) != wide) continue;  // the node reads the value twice
    Builder b(&node->graph(), use.node);
    b.set_name(wide->name());
    Value* own = cast(b.var(source), DType::kFloat).value();
    for (int i = 0; i < use.node->num_inputs(); ++i) {
      if (use.node->input(i) == wide) use.node->set_input(i, own);
    }
  }
  node->graph().remove(node);
  return true;
}

template <typename Rewrite>
bool for_each_node(Model& model, const Rewrite& rewrite) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) changed = rewrite(node) || changed;
  return changed;
}

}  // namespace

bool move_bfloat16(Model& model) {
  return for_each_node(model, [](Node* node) { return narrow_once(node) || move_narrow(node); });
}

bool widen_at_readers(Model& model) { return for_each_node(model, widen_for_readers); }

}  // namespace onnx_train
