// Merges updates without gradients computed between them into one call, whose kernel divides all their tensors among
// the threads: a model with hundreds of small weights has one node instead of hundreds.
//
// The kernel writes each weight and slot in place, by pieces in any order. This is correct only if each is read by its
// own update alone, so an update whose state is an operand of another (a weight that is another weight's gradient, also
// through a view) remains a separate node. So does the update of a scalar weight whose gradient is a constant (the
// derivative of w in loss = f + w is 1): the body would hold the gradient, and the kernel reads tensors outside of it.
// Sparse updates remain separate because they are small.
//
// With loss scaling, Where(finite, new, old) follows each result of an update and joins as its guard.
#include "kernels/geometry/updates.h"
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/outline.h"
#include "kernels/lowering/support/readers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Whether an update computes the next value of the input: the weight or a slot, but not the gradient, which is input 1.
bool is_own_state(int input, int num_outputs) { return input == 0 || (input >= 2 && input < num_outputs + 1); }

bool writes_outputs_only(const Node& node) {
  const auto& outputs = node.outputs();
  return std::all_of(outputs.begin(), outputs.end(), [&](const Value* v) { return v && node.graph().is_output(v); });
}

const Value* memory_of(const Value* value) {
  while (value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
  return value;
}

// Returns the nodes Where(guard, new, old), with one guard, that are the only readers of an update's results; nothing
// if there is another reader.
std::vector<Node*> guards_of(const Node& update) {
  std::vector<Node*> guards;
  for (int i = 0; i < update.num_outputs(); ++i) {
    const Value* result = update.output(i);
    Node* const guard = result ? only_reader(result) : nullptr;
    const bool fits = guard && &guard->graph() == &update.graph() && guard->is("Where") && guard->input(1) == result &&
                      guard->input(2) == update.input(i == 0 ? 0 : i + 1) && writes_outputs_only(*guard) &&
                      guard->input(0)->type().is_static() && num_elements(guard->input(0)->type().shape()) == 1 &&
                      (guards.empty() || guards[0]->input(0) == guard->input(0));
    if (!fits) return {};
    guards.push_back(guard);
  }
  return guards;
}

// Whether the weight, the gradient or a slot is a scalar constant, which outlining moves into the body.
bool has_constant_operand(const Node& update) {
  for (int i = 0; i < update.num_outputs() + 1; ++i) {
    if (update.input(i) && is_scalar_constant(*update.input(i))) return true;
  }
  return false;
}

// Returns the updates that do not depend on another update, in order.
std::vector<Node*> independent_updates(const Graph& graph) {
  std::vector<Node*> updates;
  Marks<Value> dependent;
  for (Node* node = graph.first(); node; node = node->next()) {
    bool depends = false;
    for_each_input(*node, [&](const Value* input) { depends = depends || dependent.contains(input); });
    const bool joins = !depends && is_update_of_one(*node) && !has_constant_operand(*node) &&
                       (writes_outputs_only(*node) || !guards_of(*node).empty());
    if (joins) updates.push_back(node);
    for (const Value* output : node->outputs()) {
      if (output && (joins || depends)) dependent.insert(output);
    }
  }
  return updates;
}

std::vector<Node*> with_state_of_their_own(const std::vector<Node*>& updates) {
  std::unordered_map<const Value*, int> readers;
  for (const Node* node : updates) {
    for (const Value* input : node->inputs()) {
      if (input) ++readers[memory_of(input)];
    }
  }
  std::vector<Node*> result;
  for (Node* node : updates) {
    bool own = true;
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (!node->input(i) || !is_own_state(i, node->num_outputs())) continue;
      own = own && readers[memory_of(node->input(i))] == 1;
    }
    if (own) result.push_back(node);
  }
  return result;
}

// Splits the updates, in order, wherever a node between them computes an operand of a later one.
std::vector<std::vector<Node*>> standing_together(const Graph& graph, const std::vector<Node*>& updates) {
  const Marks<Node> chosen(updates);
  Marks<Node> needed;  // nodes that updates depend on
  std::vector<std::vector<Node*>> groups(1);
  size_t found = 0;
  for (Node* node = graph.last(); found < updates.size(); node = node->previous()) {
    if (chosen.contains(node)) {
      groups.back().push_back(node);
      ++found;
    } else if (needed.contains(node) && !is_view(*node) && !groups.back().empty()) {
      groups.emplace_back();
    }
    if (!chosen.contains(node) && !needed.contains(node)) continue;
    const auto need = [&](const Value* input) {
      if (input->producer()) needed.insert(input->producer());
    };
    for_each_input(*node, need);
    if (!chosen.contains(node)) continue;
    for (const Node* guard : guards_of(*node)) need(guard->input(0));
  }
  for (auto& group : groups) std::reverse(group.begin(), group.end());
  return groups;
}

// Returns the updates and their guards in graph order.
std::vector<Node*> with_guards(const Graph& graph, const std::vector<Node*>& updates) {
  Marks<Node> chosen(updates);
  for (const Node* update : updates) {
    for (Node* guard : guards_of(*update)) chosen.insert(guard);
  }
  std::vector<Node*> nodes;
  for (Node* node = graph.first(); node; node = node->next()) {
    if (chosen.contains(node)) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

bool merge_updates(Model& model) {
  const std::vector<Node*> updates = with_state_of_their_own(independent_updates(*model.graph));
  bool changed = false;
  for (const auto& group : standing_together(*model.graph, updates)) {
    const std::vector<Node*> nodes = with_guards(*model.graph, group);
    if (nodes.size() < 2) continue;
    outline(nodes, "Updates");
    changed = true;
  }
  return changed;
}

}  // namespace onnx_train
