// Equal numbers are computed once. Bodies of updates compute the same few numbers from the step and the learning rate
// for every weight; a model has hundreds of weights.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

bool is_scalar(const Value* value) {
  return !value || (value->type().is_static() && num_elements(value->type().shape()) == 1);
}

// Whether nodes that are equal to this one have equal results.
bool is_shareable(const Node& node) {
  return node.num_outputs() == 1 && node.output() && !node.inputs().empty() && node.subgraphs().empty() &&
         !is_random(node) && !node.graph().is_output(node.output());
}

// Whether the node computes a number from numbers alone.
bool computes_scalar(const Node& node) {
  const auto& inputs = node.inputs();
  return is_scalar(node.output()) && node.domain().empty() && std::all_of(inputs.begin(), inputs.end(), is_scalar);
}

// Equal for nodes that compute the same.
std::string key_of(const Node& node) {
  std::string key =
      concat(node.domain(), '.', node.op(), '.', node.overload(), '\n', to_string(node.output()->type()), '\n');
  for (const auto& attribute : node.shell().attribute()) key += concat(attribute.SerializeAsString(), '\n');
  for (const Value* input : node.inputs()) key += concat(input ? concat(input->id()) : std::string("-"), ' ');
  return key;
}

template <typename F>
bool share(Model& model, const F& wanted) {
  std::unordered_map<std::string, Value*> known;
  bool changed = false;
  for (Node *node = model.graph->first(), *next = nullptr; node; node = next) {
    next = node->next();
    if (!is_shareable(*node) || !wanted(*node)) continue;
    const auto [first, added] = known.try_emplace(key_of(*node), node->output());
    if (added) continue;
    model.graph->replace(node->output(), first->second);
    model.graph->remove(node);
    changed = true;
  }
  return changed;
}

// Of two equal small constants one is enough.
void share_constants(Graph* graph) {
  constexpr size_t kMostBytes = 4096;
  std::unordered_map<std::string, Value*> known;
  const std::vector<Value*> initializers = graph->initializers();
  for (Value* value : initializers) {
    if (graph->is_input(value) || graph->is_output(value) || !value->type().is_static()) continue;
    const auto elements = static_cast<size_t>(num_elements(value->type().shape()));
    if (elements * size_of(value->dtype()) > kMostBytes) continue;
    const Tensor tensor = constant_of(value);
    if (tensor.dtype() != value->dtype()) continue;
    const std::string contents(static_cast<const char*>(tensor.data()), tensor.bytes());
    const auto [first, added] = known.try_emplace(concat(to_string(value->type()), '\n', contents), value);
    if (!added) graph->replace(value, first->second);
  }
  graph->remove_unused_initializers();
}

}  // namespace

bool share_scalars(Model& model) { return share(model, computes_scalar); }

bool share_equal_nodes(Model& model) {
  share_constants(model.graph.get());
  return share(model, [](const Node&) { return true; });
}

}  // namespace onnx_train
