// Makes the loss also compute the largest logit of each position, which the accuracy needs, so that the logits of a
// vocabulary are not read again.
#include <algorithm>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/positions.h"
#include "kernels/lowering/variant.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

constexpr const char* kAttribute = "finds_largest";

int64_t axis_of(const Node& node, int64_t otherwise) {
  return normalize_axis(node.attr("axis", otherwise), node.input(0)->rank());
}

// Returns the loss of the same logits that precedes all readers of the ArgMax, or null.
Node* loss_beside(const Node& argmax, const Positions& positions) {
  if (argmax.op() != "ArgMax" || argmax.attr("keepdims", 1) != 0 || argmax.attr("select_last_index", 0) != 0)
    return nullptr;
  for (const Use& use : argmax.input(0)->uses()) {
    Node* const loss = use.node;
    const bool is_loss = loss->is("SoftmaxCrossEntropy", kDomain) && use.index == 0 && !loss->has_attr(kAttribute);
    if (!is_loss || &loss->graph() != &argmax.graph() || axis_of(*loss, 1) != axis_of(argmax, 0)) continue;
    if (loss->attr("classes", -1) != argmax.attr("classes", -1) ||
        loss->input(1)->type().dims != argmax.output()->type().dims)
      continue;
    const auto& readers = argmax.output()->uses();
    const bool is_early = std::all_of(readers.begin(), readers.end(), [&](const Use& reader) {
      return &reader.node->graph() == &argmax.graph() && positions.of(reader.node) > positions.of(loss);
    });
    if (is_early) return loss;
  }
  return nullptr;
}

}  // namespace

bool fuse_losses(Model& model, const Device& device) {
  Graph& graph = *model.graph;
  const Positions positions(graph);
  bool changed = false;
  for (Node* node : graph.nodes()) {
    Node* const loss = loss_beside(*node, positions);
    if (!loss) continue;
    Variant variant(*loss, loss->num_inputs());
    variant.add_attribute(kAttribute);
    std::vector<std::string> inputs;
    for (int i = 0; i < loss->num_inputs(); ++i) inputs.push_back(loss->input(i) ? Variant::input(i) : "");
    variant.add_node(*loss, inputs, {"loss", "log_sum_exp"});
    variant.add_node(*node, {Variant::input(0)}, {"largest"});
    const Value* const log_sums = loss->num_outputs() > 1 ? loss->output(1) : nullptr;
    variant.add_output("loss", loss->output(), loss->output()->type());
    variant.add_output("log_sum_exp", log_sums, log_sums ? log_sums->type() : TensorType());
    variant.add_output("largest", node->output(), node->output()->type());
    Node* const call = variant.add_call(loss->inputs(), loss);
    call->set_attr(kAttribute, 1);
    if (!runs_on(device, call)) continue;
    variant.keep();
    graph.replace(loss->output(), call->output());
    if (log_sums) graph.replace(loss->output(1), call->output(1));
    graph.replace(node->output(), call->output(2));
    changed = true;
  }
  remove_dead_nodes(model);
  return changed;
}

}  // namespace onnx_train
