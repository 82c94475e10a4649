// A weight that is looked up and also used otherwise, such as an embedding that is also the head of a language model,
// has the gradient Add(gradient of the head, GatherGrad(..)). The second term is as large as the weight and nearly all
// zero. This pass adds its rows to the first term, in place if that has no other reader.
#include "kernels/functions/functions.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/readers.h"

namespace onnx_train {
namespace {

bool is_row_gradient(const Value* value) {
  const Node* node = value->producer();
  return node && node->is("GatherGrad", kDomain) && node->attr("axis", 0) == 0 && is_read_once(value) &&
         value->rank() > 0;
}

bool add_rows(Node* node) {
  if (!node->is("Add") || node->input(0) == node->input(1)) return false;
  const int term = is_row_gradient(node->input(1)) ? 1 : 0;
  Value *rows = node->input(term), *sum = node->input(1 - term);
  if (!is_row_gradient(rows) || sum->type() != rows->type()) return false;
  Node* gather = rows->producer();
  Graph& graph = node->graph();
  Builder b(&graph, node);
  b.set_name(node->output()->name());
  const Var y = call_lowered(b, "AddGatherGrad", {b.var(sum), b.var(gather->input(0)), b.var(gather->input(1))});
  graph.replace(node->output(), y.value());
  graph.remove(node);
  graph.remove(gather);
  return true;
}

}  // namespace

bool add_gather_gradients(Model& model) {
  bool changed = false;
  for (Node* node = model.graph->first(); node;) {
    Node* next = node->next();
    changed = add_rows(node) || changed;
    node = next;
  }
  return changed;
}

}  // namespace onnx_train
