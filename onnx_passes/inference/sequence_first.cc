#include "onnx_passes/inference/sequence_first.h"

#include <utility>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

Node* put_sequence_first(Node* node) {
  // The permutation that makes Y batch-first: [sequence, direction, batch, ..] becomes [batch, sequence, ..].
  static const std::vector<int64_t> kBatchOfYFirst = {2, 0, 1, 3}, kExchanged = {1, 0, 2};
  Graph& graph = node->graph();
  Builder b(&graph, node);
  std::vector<Var> inputs;
  for (int i = 0; i < node->num_inputs(); ++i) {
    inputs.push_back(b.var(node->input(i)));
    if (!inputs.back() || (i != 0 && i != 5 && i != 6)) continue;  // X and the initial states
    b.set_name(node->input(i)->name() + "/sequence_first");
    inputs.back() = transpose(inputs.back(), kExchanged);
  }
  b.set_name(node->op());
  node->set_attr("layout", 0);
  const auto outputs = b.like(*node, inputs, node->num_outputs());
  std::vector<std::pair<Value*, std::string>> names;
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (!node->output(i)) continue;
    names.emplace_back(nullptr, node->output(i)->name());
    const auto& order = i == 0 ? kBatchOfYFirst : kExchanged;
    names.back().first = transpose(outputs[static_cast<size_t>(i)], order).value();
    graph.replace(node->output(i), names.back().first);
  }
  graph.remove(node);
  for (const auto& [value, name] : names) {
    if (!graph.find(name)) graph.rename(value, name);
  }
  return names.empty() ? nullptr : names[0].first->producer()->input(0)->producer();
}

}  // namespace onnx_train
