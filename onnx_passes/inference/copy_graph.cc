#include "onnx_passes/inference/copy_graph.h"

#include "onnx_passes/inference/builder.h"

namespace onnx_train {
namespace {

std::string free_name(const Graph& graph, const std::string& prefix, const std::string& name) {
  return graph.find(name) ? graph.unique_name(prefix + name) : name;
}

}  // namespace

Value* GraphCopy::of(const Value* value) const {
  const auto found = copies_.find(value);
  return found == copies_.end() ? const_cast<Value*>(value) : found->second;
}

Value* GraphCopy::record(const Value* from, Value* to) {
  to->set_type(from->type());
  to->set_elements(from->elements());
  copies_[from] = to;
  return to;
}

void GraphCopy::contents(const Graph& from) {
  for (const Value* v : from.initializers()) {
    if (!copies_.count(v))
      record(v, to_->add_initializer(free_name(*to_, prefix_, v->name()), v->shared_initializer()));
  }
  for (const Node* n = from.first(); n; n = n->next()) node(*n);
}

Node* GraphCopy::node(const Node& n) { return node(n, to_, before_, prefix_); }

Node* GraphCopy::node(const Node& node, Graph* to, Node* before, const std::string& prefix) {
  std::vector<Value*> inputs;
  for (const Value* v : node.inputs()) inputs.push_back(v ? of(v) : nullptr);
  std::vector<std::string> names;
  for (const Value* v : node.outputs()) names.push_back(v ? free_name(*to, prefix, v->name()) : "");
  Node* copy = to->add_node(node, inputs, names, before);
  for (int i = 0; i < node.num_outputs(); ++i) {
    if (node.output(i)) record(node.output(i), copy->output(i));
  }
  for (const auto& subgraph : node.subgraphs()) graph(*subgraph.graph, to->add_subgraph(copy, subgraph.attribute));
  return copy;
}

void GraphCopy::graph(const Graph& from, Graph* to) {
  to->shell() = from.shell();
  for (const Value* v : from.inputs()) record(v, to->add_input(to->unique_name(v->name()), v->type()));
  for (const Value* v : from.initializers()) {
    const std::string name = from.is_input(v) ? copies_.at(v)->name() : to->unique_name(v->name());
    record(v, to->add_initializer(name, v->shared_initializer()));
  }
  for (const Node* n = from.first(); n; n = n->next()) node(*n, to, nullptr, "");
  for (const Value* v : from.outputs()) to->add_output(of(v));
}

void add_result(Graph* graph, Value* value) {
  const bool is_result = value->producer() && &value->graph() == graph && !graph->is_output(value);
  if (is_result) return graph->add_output(value);
  Builder b(graph);
  b.set_name(value->name());
  graph->add_output(b.op("Identity", {b.var(value)}).value());
}

}  // namespace onnx_train
