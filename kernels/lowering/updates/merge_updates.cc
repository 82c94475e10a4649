// Merges updates between which no gradient is computed into one call, so that one kernel divides all their tensors
// among the threads: a model with hundreds of small weights pays for one node instead of hundreds.
//
// The kernel writes each weight and slot in place, piece by piece and in any order. That is correct only if each is
// read by its own update alone. An update whose state is an operand of another update (a weight that is another
// weight's gradient, also through a view) therefore stays a separate node. So do sparse updates, which are small.
//
// With loss scaling, Where(finite, new, old) follows each result of an update. It joins, too, as a guard of the update.
#include "kernels/lowering/updates/updates.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/outline.h"
#include "kernels/lowering/readers.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// The inputs for which an update has new values: weight and slots, but not the gradient, which is input 1.
bool is_own_state(int input, int num_outputs) { return input == 0 || (input >= 2 && input < num_outputs + 1); }

bool writes_outputs_only(const Node& node) {
  const auto& outputs = node.outputs();
  return std::all_of(outputs.begin(), outputs.end(), [&](const Value* v) { return v && node.graph().is_output(v); });
}

const Value* memory_of(const Value* value) {
  while (value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
  return value;
}

// The nodes Where(guard, new, old), with one guard, that read the results of an update and nothing else does; empty if
// there is another reader.
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

// Updates that depend on no other update, in order.
std::vector<Node*> independent_updates(const Graph& graph) {
  std::vector<Node*> updates;
  Marks<Value> dependent;
  for (Node* node = graph.first(); node; node = node->next()) {
    bool depends = false;
    for_each_input(*node, [&](const Value* input) { depends = depends || dependent.contains(input); });
    const bool joins = !depends && is_update(*node) && !node->is("SparseSgd", kDomain) &&
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

// Splits the updates, in order, wherever a node in between computes an operand of a later one.
std::vector<std::vector<Node*>> standing_together(const Graph& graph, const std::vector<Node*>& updates) {
  const Marks<Node> chosen(updates);
  Marks<Node> needed;  // by updates, directly or indirectly
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

// The updates and their guards, in the order of the graph.
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
