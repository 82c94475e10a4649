#include "onnx_passes/derivatives/differentiate.h"

#include <algorithm>
#include <string_view>

#include "onnx_passes/derivatives/sizes.h"
#include "onnx_passes/derivatives/weights_as_inputs.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/entry_point.h"
#include "onnx_passes/model/flatten.h"
#include "onnx_passes/model/liveness.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/training_versions.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/operators/random.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "onnx_passes/recognize/recognize.h"
#include "onnx_passes/recognize/simplify.h"
#include "onnx_passes/training/training_mode.h"

namespace onnx_train {
namespace {

// Adds the outputs, their gradients as inputs, and the gradients of `sources` to the entry point. Returns the sources
// that an output depends on.
std::vector<Value*> add_forward_and_backward(Model* model, EntryPoint* step, const std::vector<Value*>& sources) {
  Graph* algorithm = step->algorithm.get();
  Builder builder(algorithm);
  std::vector<Value*> outputs, output_gradients;
  for (Value* output : model->graph->outputs()) {
    Value* value = training_value(*step, output);
    add_result(step, "output/" + output->name(), builder.var(value))->set_role({roles::kOutput, output->name()});
    if (!is_float(output->dtype())) continue;
    const std::string name = algorithm->unique_name("grad/" + output->name());
    Value* gradient = algorithm->add_input(name, value->type());
    gradient->set_role({roles::kOutputGradient, output->name()});
    outputs.push_back(value);
    output_gradients.push_back(gradient);
  }
  if (outputs.empty()) fail("none of the model's outputs is a float, so there is nothing to differentiate");
  const std::vector<Value*> gradients = add_gradients(algorithm, outputs, output_gradients, sources);
  std::vector<Value*> reached;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!gradients[i]) continue;
    Value* result = add_result(step, "grad/" + sources[i]->name(), builder.var(gradients[i]));
    result->set_role({roles::kGradient, sources[i]->name()});
    reached.push_back(sources[i]);
  }
  return reached;
}

bool is_output_of_backward(const Value* output) { return output->has_role(roles::kGradient); }

// The values that nodes of the forward pass compute and nodes of the backward pass read, in order.
std::vector<std::string> find_saved(const Graph& flat) {
  // The backward pass computes again what plans know: they know what follows from it only if they can compute it, such
  // as the shape of a Resize.
  const Marks<Value> known = known_to_plans(flat);
  Liveness forward;
  Marks<Value> needed;
  for (const Value* output : flat.outputs()) {
    if (is_output_of_backward(output)) {
      needed.insert(output);
    } else {
      forward.need(output);
    }
  }
  forward.trace(flat);
  std::vector<std::string> saved;
  for (const Node* node = flat.last(); node; node = node->previous()) {
    bool runs = false;
    for (const Value* output : node->outputs()) {
      if (!output || !needed.contains(output)) continue;
      if (forward.runs(node) && !known.contains(output)) {
        saved.push_back(output->name());
      } else {
        runs = true;
      }
    }
    if (!runs) continue;
    for_each_input(*node, [&](const Value* v) { needed.insert(v); });
  }
  std::reverse(saved.begin(), saved.end());
  return saved;
}

Model forward_pass(const Model& flat, const std::vector<std::string>& saved,
                   const std::vector<InputWithDefault>& parameters) {
  Model model = clone(flat);
  Graph& graph = *model.graph;
  std::vector<Value*> outputs;
  for (Value* output : graph.outputs()) {
    if (!is_output_of_backward(output)) outputs.push_back(output);
  }
  for (const std::string& name : saved) {
    Value* value = graph.find(name);
    if (graph.is_output(value)) continue;
    value->set_role({roles::kSaved, ""});
    outputs.push_back(value);
  }
  graph.set_outputs(std::move(outputs));
  return finish_pass(std::move(model), "forward", parameters);
}

Model backward_pass(const Model& flat, const std::vector<std::string>& saved,
                    const std::vector<InputWithDefault>& parameters) {
  Model model = clone(flat);
  Graph& graph = *model.graph;
  std::vector<Value*> outputs = graph.outputs();
  std::erase_if(outputs, [](const Value* output) { return !is_output_of_backward(output); });
  graph.set_outputs(std::move(outputs));
  for (const std::string& name : saved) {
    Value* value = graph.find(name);
    Value* input = graph.add_input(graph.unique_name(name), value->type());
    graph.replace(value, input);
    graph.rename(value, graph.unique_name(name));
    graph.rename(input, name);
    input->set_role({roles::kSaved, ""});
  }
  return finish_pass(std::move(model), "backward", parameters);
}

// "output/y" becomes "y" where that name is free.
void name_outputs(Graph* flat) {
  for (Value* output : flat->outputs()) {
    if (output->has_role(roles::kOutput)) flat->claim_name(output, output->role()->of);
  }
}

}  // namespace

DifferentiatedModel differentiate(Model model, const BuildOptions& options) {
  run_pipeline(
      {{"simplify_indexing", simplify_indexing}, recognize(options), training_mode(options), mixed_precision(options)},
      &model, options.pipeline);
  std::vector<Value*> weights = select_trainable(model, options.train, options.freeze);
  // A pass is differentiated again by its own weights and states: its other initializers, such as the scales of a
  // Resize, are constants that shapes may depend on.
  if (!model.metadata(kPass).empty()) std::erase_if(weights, [](const Value* w) { return !w->role(); });
  std::vector<Value*> sources = weights;
  for (Value* input : model.graph->inputs()) {
    if (is_float(input->dtype()) && !input->is_initializer()) sources.push_back(input);
  }
  if (sources.empty()) fail("the model has neither float weights nor float inputs to differentiate by");
  const std::vector<Value*> statistics = running_statistics(*model.graph);
  const std::vector<Value*> reached = add_forward_and_backward(&model, model.find_entry_point(Entry::kStep), sources);
  std::erase_if(weights, [&](Value* w) { return std::find(reached.begin(), reached.end(), w) == reached.end(); });
  Model flat = flatten(model, Entry::kStep);
  const std::vector<InputWithDefault> parameters = make_inputs(flat.graph.get(), model, weights, statistics);
  infer_types(flat.graph.get());
  simplify(flat);
  name_outputs(flat.graph.get());
  const std::vector<std::string> saved = find_saved(*flat.graph);
  return {forward_pass(flat, saved, parameters), backward_pass(flat, saved, parameters)};
}

}  // namespace onnx_train
