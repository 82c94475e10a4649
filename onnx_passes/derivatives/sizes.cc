#include "onnx_passes/derivatives/sizes.h"

#include <algorithm>
#include <vector>

#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"

namespace onnx_train {
namespace {

bool is_known(const Value* value, const Marks<Value>& known) {
  return value->is_initializer() ? !value->graph().is_input(value) : known.contains(value);
}

// Whether each size is a number, or one that an input of the graph has.
bool has_sizes_of_inputs(const Value& value) {
  if (!value.has_rank()) return false;
  return std::ranges::all_of(*value.type().dims, [&](const Dim& dim) {
    if (dim.known()) return true;
    return !dim.symbol().empty() && std::ranges::any_of(value.graph().inputs(), [&](const Value* input) {
      return input->has_rank() && std::ranges::any_of(*input->type().dims, [&](const Dim& of_input) {
               return !of_input.known() && of_input.symbol() == dim.symbol();
             });
    });
  });
}

}  // namespace

Marks<Value> known_to_plans(const Graph& graph) {
  Marks<Value> known;
  for (const Node* node = graph.first(); node; node = node->next()) {
    bool follows = !is_random(*node);
    for_each_input(*node, [&](const Value* v) { follows = follows && is_known(v, known); });
    if (!follows && !reads_shape_only(*node)) continue;
    for (const Value* output : node->outputs()) {
      if (output) known.insert(output);
    }
  }
  return known;
}

bool is_sized_by_data(const Value& value, const Marks<Value>& known) {
  std::vector<const Value*> pending = {&value};
  Marks<Value> seen;
  while (!pending.empty()) {
    const Value* v = pending.back();
    pending.pop_back();
    const Node* node = v->producer();
    if (!node || has_sizes_of_inputs(*v) || !seen.insert(v)) continue;
    for (const int i : operator_of(*node).sized_by) {
      if (node->input(i) && !is_known(node->input(i), known)) return true;
    }
    for_each_input(*node, [&](const Value* input) { pending.push_back(input); });
  }
  return false;
}

}  // namespace onnx_train
