// Narrows values before data movements instead of after them.
#include <algorithm>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/types/widened.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

int64_t size(const Value* value) { return num_elements(value->type().shape()); }

// Returns the type to which all results of the node are narrowed, if it reads no more elements than it writes: casts
// before the node then cost no more than after it. Otherwise returns kUndefined.
DType narrowed_type(const Node& node, int moved) {
  int64_t in = 0, out = 0;
  for (int i = 0; i < moved; ++i) {
    if (node.input(i)->dtype() != DType::kFloat || !node.input(i)->type().is_static()) return DType::kUndefined;
    in += size(node.input(i));
  }
  DType type = DType::kUndefined;
  for (const Value* output : node.outputs()) {
    if (!output || (output->uses().empty() && !node.graph().is_output(output))) continue;
    const std::vector<Node*> casts = narrowing_readers(output);
    if (casts.empty() || !output->type().is_static()) return DType::kUndefined;
    const DType to = casts[0]->output()->dtype();
    if (type != DType::kUndefined && type != to) return DType::kUndefined;
    out += size(output);
    type = to;
  }
  return in <= out ? type : DType::kUndefined;
}

// narrow(move(x)) -> move(narrow(x))
bool narrow_first(Node* node) {
  const int moved = num_moved(*node);
  const DType dtype = moved == 0 ? DType::kUndefined : narrowed_type(*node, moved);
  if (dtype == DType::kUndefined) return false;
  Builder b(&node->graph(), node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    Value* input = node->input(i);
    Value* source = i < moved ? widened_from(input) : nullptr;
    if (source && source->dtype() != dtype) source = nullptr;
    if (input) b.set_name(input->name() + "/narrow");
    inputs.push_back(source ? b.var(source) : i < moved ? cast(b.var(input), dtype) : b.var(input));
  }
  b.set_name(node->output() ? node->output()->name() + "/narrow" : "");
  const std::vector<Var> outputs = b.like(*node, inputs, node->num_outputs());
  for (int i = 0; i < node->num_outputs(); ++i) {
    for (Node* narrowing : narrowing_readers(node->output(i))) {
      replace_node(narrowing, {outputs[static_cast<size_t>(i)]});
    }
  }
  node->graph().remove(node);
  return true;
}

}  // namespace

bool narrow_before_moves(Model& model) {
  bool changed = false;
  Node* previous = nullptr;  // backwards, so that a cast can pass several nodes
  for (Node* node = model.graph->last(); node; node = previous) {
    previous = node->previous();
    changed = narrow_first(node) || changed;
  }
  return changed;
}

}  // namespace onnx_train
