// Equal numbers are computed once. Bodies of updates compute the same few numbers from the step and the learning rate
// for every weight; a model has hundreds of weights.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "kernels/lowering/lowering.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

bool is_scalar(const Value* value) {
  return !value || (value->type().is_static() && num_elements(value->type().shape()) == 1);
}

// Whether the node has one result and computes it from numbers alone.
bool computes_scalar(const Node& node) {
  const auto& inputs = node.inputs();
  return node.num_outputs() == 1 && node.output() && is_scalar(node.output()) && !inputs.empty() &&
         node.domain().empty() && node.subgraphs().empty() && !is_random(node) &&
         !node.graph().is_output(node.output()) && std::all_of(inputs.begin(), inputs.end(), is_scalar);
}

// Equal for nodes that compute the same.
std::string key_of_scalar(const Node& node) {
  std::string key = concat(node.op(), '\n', node.output()->type().shape().size(), '\n');
  for (const auto& attribute : node.shell().attribute()) key += concat(attribute.SerializeAsString(), '\n');
  for (const Value* input : node.inputs()) key += concat(input ? concat(input->id()) : std::string("-"), ' ');
  return key;
}

}  // namespace

bool share_scalars(Model& model) {
  std::unordered_map<std::string, Value*> known;
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (!computes_scalar(*node)) continue;
    const auto [first, added] = known.try_emplace(key_of_scalar(*node), node->output());
    if (added) continue;
    model.graph->replace(node->output(), first->second);
    model.graph->remove(node);
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
