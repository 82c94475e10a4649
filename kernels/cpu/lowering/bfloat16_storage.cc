// Keeps in 16 bits what mixed precision has rounded. A rounded value arrives here as two casts, narrowed and widened.
#include <algorithm>

#include "kernels/cpu/lowering/lowering.h"
#include "kernels/cpu/lowering/widened.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/ir/builder.h"

namespace onnx_train::cpu {
namespace {

void replace(Node* node, const std::vector<Var>& with) {
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) node->graph().replace(node->output(i), with[static_cast<size_t>(i)].value());
  }
  node->graph().remove(node);
}

// narrow(widen(x)) -> x
bool narrow_once(Node* node) {
  Value* source = node->is("Cast") ? widened_from(node->input(0)) : nullptr;
  if (!source || node->output()->dtype() != DType::kBFloat16 || node->graph().is_output(node->output())) return false;
  replace(node, {Builder(&node->graph(), node).var(source)});
  return true;
}

// How many of the node's first inputs are elements that it only moves; the others say where to.
int num_moved(const Node& node) {
  if (node.is("Concat")) return node.num_inputs();
  const bool moves = is_view(node) || node.is("Transpose") || node.is("Split") || node.is("Slice") ||
                     node.is("Expand") || node.is("Gather");
  return moves ? 1 : 0;
}

// move(widen(x)) -> widen(move(x))
bool move_narrow(Node* node) {
  const int moved = num_moved(*node);
  if (moved == 0) return false;
  Builder b(&node->graph(), node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    Value* input = i < moved ? widened_from(node->input(i)) : node->input(i);
    if (i < moved && !input) return false;
    inputs.push_back(b.var(input));
  }
  b.set_name(node->output()->name() + "/narrow");
  std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
  for (Var& output : outputs) output = cast(output, DType::kFloat);
  replace(node, outputs);
  return true;
}

// Every reader has the widened value for itself, made right before it.
bool widen_for_readers(Node* node) {
  Value* wide = node->output();
  Value* source = widened_from(wide);
  if (!source || node->graph().is_output(wide)) return false;
  const std::vector<Use> uses = wide->uses();
  const auto is_elsewhere = [&](const Use& use) { return &use.node->graph() != &node->graph(); };
  if (uses.empty() || std::any_of(uses.begin(), uses.end(), is_elsewhere)) return false;
  for (const Use& use : uses) {
    if (use.node->input(use.index) != wide) continue;  // it reads the value twice
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

}  // namespace onnx_train::cpu
