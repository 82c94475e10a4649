#include "onnx_passes/adapt/weight_places.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/weight_origin.h"

namespace onnx_train {
namespace {

bool is_float_of_weights(int type) {
  const auto dtype = static_cast<DType>(type);
  return dtype == DType::kFloat || dtype == DType::kDouble || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The names of the outputs of nodes that hold a tensor as their attribute, by the tensor.
void name_constants(onnx::GraphProto* graph, std::unordered_map<const onnx::TensorProto*, std::string>* names) {
  for (auto& node : *graph->mutable_node()) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t() && node.output_size() > 0) names->emplace(&attribute.t(), node.output(0));
      if (attribute.has_g()) name_constants(attribute.mutable_g(), names);
      for (auto& subgraph : *attribute.mutable_graphs()) name_constants(&subgraph, names);
    }
  }
}

}  // namespace

std::vector<WeightPlace> find_places(ModelMessage* message) {
  std::unordered_map<const onnx::TensorProto*, std::string> constants;
  name_constants(message->proto.mutable_graph(), &constants);
  std::vector<WeightPlace> places;
  for_each_tensor(&message->proto, [&](onnx::TensorProto* tensor, bool) {
    if (!is_float_of_weights(tensor->data_type())) return;
    const auto reference = reference_of(*tensor);
    WeightPlace place;
    place.tensor = tensor;
    place.name = tensor->name();
    place.contents = reference ? message->contents.at(*reference) : from_proto(*tensor);
    if (place.contents.size() == 0) return;
    if (const auto constant = constants.find(tensor); constant != constants.end()) place.name = constant->second;
    place.names = {place.name};
    place.is_uniform = is_uniform(place.contents);
    places.push_back(std::move(place));
  });
  return places;
}

void add_names_of_modules(const ModelMessage& message, std::vector<WeightPlace>* places) {
  ModelMessage copy = message;
  Model model;
  try {
    keep_origins(&copy.proto);
    model = from_message(std::move(copy));
  } catch (const Error&) {
    return;  // what has no form as a graph here has the names of its tensors alone
  }
  std::vector<const Value*> values(model.graph->initializers().begin(), model.graph->initializers().end());
  std::map<std::string, std::vector<std::string>> known;
  for (std::vector<std::string>& names : names_of_weights(model, values)) known[names[0]] = std::move(names);
  for (WeightPlace& place : *places) {
    const auto found = known.find(place.name);
    if (found == known.end()) continue;
    place.names = found->second;
    const Value* value = model.graph->find(place.name);
    for (const Use& use : value->uses()) place.told.push_back(name_at_reader(*value, reader_of(use)));
    if (std::count(place.told.begin(), place.told.end(), "") > 0) place.told.clear();
  }
}

std::vector<std::vector<std::string>> names_of_weights(const Model& model, const std::vector<const Value*>& weights) {
  const auto parameters = transposed_parameters(model);
  std::vector<std::vector<std::string>> all;
  for (const Value* value : weights) {
    std::vector<std::string> names = {value->name()};
    const auto add = [&](const std::string& name) {
      if (std::count(names.begin(), names.end(), name) == 0) names.push_back(name);
    };
    if (const auto found = parameters.find(value->name()); found != parameters.end()) add(found->second);
    for (const std::string& name : other_names(*value)) add(name);
    for (const std::string& name : names_of_readers(*value)) add(name);
    all.push_back(std::move(names));
  }
  return all;
}

}  // namespace onnx_train
