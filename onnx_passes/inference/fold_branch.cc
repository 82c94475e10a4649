#include "onnx_passes/inference/fold_branch.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// Copies a branch's nodes and initializers into the graph around it; initializers share their contents.
class BranchCopy {
 public:
  BranchCopy(Node* place, std::string branch) : place_(place), prefix_(std::move(branch) + "/") {}

  std::vector<Value*> run(const Graph& branch) {
    Graph* to = &place_->graph();
    for (const Value* v : branch.initializers())
      record(v, to->add_initializer(outer_name(*v), v->shared_initializer()));
    for (const Node* n = branch.first(); n; n = n->next()) {
      std::vector<std::string> names;
      for (const Value* v : n->outputs()) names.push_back(v ? outer_name(*v) : "");
      copy_node(*n, to, names, place_);
    }
    std::vector<Value*> outputs;
    for (Value* v : branch.outputs()) outputs.push_back(copy_of(v));
    return outputs;
  }

 private:
  std::string outer_name(const Value& value) const {
    const Graph& to = place_->graph();
    return to.find(value.name()) ? to.unique_name(prefix_ + value.name()) : value.name();
  }

  // Values of outer graphs are used directly.
  Value* copy_of(Value* value) const {
    const auto found = copies_.find(value);
    return found == copies_.end() ? value : found->second;
  }

  void record(const Value* from, Value* to) {
    to->set_type(from->type());
    to->set_elements(from->elements());
    copies_[from] = to;
  }

  void copy_node(const Node& node, Graph* to, const std::vector<std::string>& names, Node* before) {
    std::vector<Value*> inputs;
    for (Value* v : node.inputs()) inputs.push_back(v ? copy_of(v) : nullptr);
    Node* copy = to->add_node(node, inputs, names, before);
    for (int i = 0; i < node.num_outputs(); ++i) {
      if (node.output(i)) record(node.output(i), copy->output(i));
    }
    for (const auto& subgraph : node.subgraphs()) {
      copy_graph(*subgraph.graph, to->add_subgraph(copy, subgraph.attribute));
    }
  }

  void copy_graph(const Graph& from, Graph* to) {
    to->shell() = from.shell();
    for (const Value* v : from.inputs()) record(v, to->add_input(to->unique_name(v->name()), v->type()));
    for (const Value* v : from.initializers()) {
      const std::string name = from.is_input(v) ? copies_.at(v)->name() : to->unique_name(v->name());
      record(v, to->add_initializer(name, v->shared_initializer()));
    }
    for (const Node* n = from.first(); n; n = n->next()) {
      std::vector<std::string> names;
      for (const Value* v : n->outputs()) names.push_back(v ? to->unique_name(v->name()) : "");
      copy_node(*n, to, names, nullptr);
    }
    for (Value* v : from.outputs()) to->add_output(copy_of(v));
  }

  Node* place_;
  std::string prefix_;
  std::unordered_map<const Value*, Value*> copies_;
};

const Graph* find_branch(const Node& node, const std::string& attribute) {
  for (const auto& subgraph : node.subgraphs()) {
    if (subgraph.attribute == attribute) return subgraph.graph.get();
  }
  return nullptr;
}

}  // namespace

bool take_branch(Node* node, const std::string& attribute) {
  const Graph* branch = find_branch(*node, attribute);
  if (!branch || static_cast<int>(branch->outputs().size()) < node->num_outputs()) return false;
  const std::vector<Value*> results = BranchCopy(node, attribute).run(*branch);
  Graph& graph = node->graph();
  for (int i = 0; i < node->num_outputs(); ++i) {
    if (node->output(i)) graph.replace(node->output(i), results[static_cast<size_t>(i)]);
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
