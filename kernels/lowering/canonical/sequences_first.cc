#include "kernels/lowering/canonical/sequences_first.h"

#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/sequence_first.h"
#include "onnx_passes/operators/recurrent.h"

namespace onnx_train {
namespace {

// Whether both nodes read the same values; missing trailing inputs count as absent.
bool same_inputs(const Node& a, const Node& b) {
  for (int i = 0; i < std::max(a.num_inputs(), b.num_inputs()); ++i) {
    if (a.input(i) != b.input(i)) return false;
  }
  return true;
}

// Returns the ONNX operator of which `call` is the training form, or null.
Node* forward_of(const Node& call) {
  for (const Use& use : call.input(0)->uses()) {
    if (!is_recurrent(*use.node) || &use.node->graph() != &call.graph()) continue;
    if (same_inputs(*use.node, call) && find_recurrence(*use.node) == find_recurrence(call)) return use.node;
  }
  return nullptr;
}

}  // namespace

bool put_sequences_first(Model& model) {
  bool changed = false;
  for (Node* node : model.graph->nodes()) {
    if (!is_recurrent(*node) || node->attr("layout", 0) == 0) continue;
    put_sequence_first(node);
    changed = true;
  }
  return changed;
}

bool share_recurrent_steps(Model& model) {
  Graph& graph = *model.graph;
  bool changed = false;
  for (Node* call : graph.nodes()) {
    if (!call->is("LSTMTrain", kDomain) && !call->is("GRUTrain", kDomain)) continue;
    Node* forward = forward_of(*call);
    if (!forward) continue;
    graph.move(call, forward);
    for (int i = 0; i < forward->num_outputs(); ++i) {
      if (forward->output(i)) graph.replace(forward->output(i), call->output(i));
    }
    graph.remove(forward);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
