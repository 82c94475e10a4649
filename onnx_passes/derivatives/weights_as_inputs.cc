#include "onnx_passes/derivatives/weights_as_inputs.h"

#include <algorithm>

#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/recognize/recognize.h"
#include "onnx_passes/recognize/simplify.h"

namespace onnx_train {
namespace {

// Makes an initializer of the flattened step an input, if the step reads it.
void make_input(Graph* flat, const std::string& name, const char* role, std::vector<InputWithDefault>* parameters) {
  Value* initializer = flat->find(name);
  if (!initializer || !initializer->is_initializer()) return;
  parameters->push_back({name, role, initializer->shared_initializer()});
  Value* input = flat->add_input(flat->unique_name(name), initializer->type());
  flat->replace(initializer, input);
  flat->remove_initializer(initializer);
  flat->rename(input, name);
}

}  // namespace

std::vector<Value*> running_statistics(const Graph& graph) {
  std::vector<Value*> statistics;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (!node->is("BatchNormalization")) continue;
    for (const int i : {3, 4}) {
      Value* value = node->input(i);
      const bool is_known = std::find(statistics.begin(), statistics.end(), value) != statistics.end();
      if (value && value->is_initializer() && !is_known) statistics.push_back(value);
    }
  }
  return statistics;
}

std::vector<InputWithDefault> make_inputs(Graph* flat, const Model& model, const std::vector<Value*>& weights,
                                          const std::vector<Value*>& statistics) {
  std::vector<InputWithDefault> parameters;
  for (const Value* weight : weights) make_input(flat, weight->name(), roles::kWeight, &parameters);
  for (const Value* value : statistics) make_input(flat, value->name(), roles::kTrainingState, &parameters);
  const EntryPoint& step = *model.find_entry_point(Entry::kStep);
  for (const std::string& state : state_of(model, Entry::kStep)) {
    parameters.push_back({state, roles::kTrainingState, step.algorithm->find(state)->shared_initializer()});
  }
  return parameters;
}

Model finish_pass(Model model, const char* name, const std::vector<InputWithDefault>& parameters) {
  Graph& graph = *model.graph;
  graph.shell().set_name(name);
  simplify(model);
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    const bool is_read = !input->uses().empty() || graph.is_output(input);
    if (!is_read && !input->is_initializer() && !input->has_role(roles::kDirection)) graph.remove_input(input);
  }
  for (const InputWithDefault& parameter : parameters) {
    Value* input = graph.find(parameter.name);
    if (!input || !graph.is_input(input)) continue;
    graph.add_initializer(parameter.name, parameter.value);
    input->set_role({parameter.role, ""});
  }
  model.set_metadata(kPass, name);
  return model;
}

bool is_finished_pass(const onnx::ModelProto& proto) {
  return std::any_of(proto.metadata_props().begin(), proto.metadata_props().end(),
                     [](const auto& property) { return property.key() == kPass; });
}

}  // namespace onnx_train
