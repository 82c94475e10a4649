#include "onnx_passes/inference/fold_branch.h"

#include <algorithm>

#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

bool take_branch(Node* node, const std::string& attribute) {
  const Graph* branch = node->subgraph(attribute);
  if (!branch || static_cast<int>(branch->outputs().size()) < node->num_outputs()) return false;
  Graph& graph = node->graph();
  GraphCopy copy(&graph, node, attribute + "/");
  copy.contents(*branch);
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) graph.replace(node->output(i), copy.of(branch->outputs()[static_cast<size_t>(i)]));
  }
  graph.remove(node);
  return true;
}

bool fold_branch(Node* node, std::string* taken) {
  if (!node->is("If") || !node->input(0)) return false;
  const Tensor condition = constant_of(node->input(0));
  if (condition.empty() || condition.size() != 1) return false;
  *taken = condition.at(0) != 0 ? "then_branch" : "else_branch";
  return take_branch(node, *taken);
}

bool remove_unread(Graph* graph) {
  bool changed = false;
  for (Node *node = graph->last(), *previous = nullptr; node; node = previous) {
    previous = node->previous();
    const auto& outputs = node->outputs();
    const bool is_read = std::any_of(outputs.begin(), outputs.end(),
                                     [&](const Value* v) { return v && (!v->uses().empty() || graph->is_output(v)); });
    if (is_read) continue;
    graph->remove(node);
    changed = true;
  }
  return graph->remove_unused_initializers() || changed;
}

}  // namespace onnx_train
