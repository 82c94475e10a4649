#include "onnx_passes/model/training_versions.h"

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

Value* training_value(const EntryPoint& entry, Value* inference_value) {
  const auto found = entry.training_versions.find(inference_value);
  return found == entry.training_versions.end() ? inference_value : found->second;
}

Value* TrainingVersions::of(Value* value) const {
  const auto found = versions_.find(value);
  return found == versions_.end() ? value : found->second;
}

bool TrainingVersions::are_read_by(const Node& node) const {
  for (Value* input : node.inputs()) {
    if (versions_.count(input)) return true;
  }
  for (const auto& subgraph : node.subgraphs()) {
    if (are_read_by(*subgraph.graph)) return true;
  }
  return false;
}

bool TrainingVersions::are_read_by(const Graph& graph) const {
  for (const Node* n = graph.first(); n; n = n->next()) {
    if (are_read_by(*n)) return true;
  }
  for (Value* output : graph.outputs()) {
    if (versions_.count(output)) return true;
  }
  return false;
}

void TrainingVersions::copy(const Node& node) {
  std::vector<Value*> inputs;
  for (Value* input : node.inputs()) inputs.push_back(of(input));
  Graph& algorithm = *entry_.algorithm;
  std::vector<std::string> names;
  for (Value* output : node.outputs()) names.push_back(output ? algorithm.unique_name(training_name(output)) : "");
  onnx::NodeProto shell = node.shell();
  if (!node.name().empty()) shell.set_name("train/" + node.name());
  Node* made = algorithm.add_node(shell, inputs, names, before_);
  for (const auto& subgraph : node.subgraphs()) copy_subgraph(subgraph, made);
  for (int i = 0; i < node.num_outputs(); ++i) {
    if (!node.output(i)) continue;
    add(node.output(i), made->output(i));
    made->output(i)->set_type(node.output(i)->type());
    made->output(i)->set_elements(node.output(i)->elements());
  }
  infer_types(made);
}

void TrainingVersions::copy_subgraph(const Node::Subgraph& subgraph, Node* node) {
  onnx::GraphProto proto;
  to_proto(*subgraph.graph, &proto);
  Graph* made = entry_.algorithm->add_subgraph(node, subgraph.attribute);
  from_proto(proto, made);
  redirect(made);
}

void TrainingVersions::add(Value* original, Value* made) {
  entry_.algorithm->claim_name(made, training_name(original));
  set(original, made);
}

void TrainingVersions::redirect(Graph* graph) const {
  for (Node* n = graph->first(); n; n = n->next()) {
    for (int i = 0; i < n->num_inputs(); ++i) {
      if (versions_.count(n->input(i))) n->set_input(i, of(n->input(i)));
    }
    for (const auto& inner : n->subgraphs()) redirect(inner.graph.get());
  }
  std::vector<Value*> outputs;
  for (Value* output : graph->outputs()) outputs.push_back(of(output));
  graph->set_outputs(std::move(outputs));
}

}  // namespace onnx_train
