#include <algorithm>
#include <unordered_set>

#include "onnx_passes/adapt/adapt.h"
#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/model/constants.h"

namespace onnx_train {
namespace {

using Arrays = std::map<std::string, Tensor>;

constexpr size_t kMostNamed = 4;

std::string listed(const std::vector<std::string>& names) {
  return first_few(names, kMostNamed, [](const std::string& name) { return concat("'", name, "'"); });
}

// The array in the type of `value`. Throws Error if it does not fit.
Tensor fitted(const Tensor& array, const Value& value, const std::string& source) {
  const DType from = array.dtype(), to = value.dtype();
  if (array.shape() != value.type().shape()) {
    fail_as(ErrorCode::kWeightsMisfit, source, ": '", value.name(), "' has the shape ", to_string(array.shape()),
            "; the model's has ", to_string(value.type().shape()));
  }
  if (from != to && !(is_float(from) && is_float(to)) && !(is_integer(from) && is_integer(to))) {
    fail_as(ErrorCode::kWeightsMisfit, source, ": '", value.name(), "' is ", onnx_train::name(from),
            "; the model's is ", onnx_train::name(to));
  }
  return from == to ? array : array.cast(to);
}

bool is_new_head(const Model& model, const std::string& name) {
  return !model.metadata(std::string(kHeadRecord) + name).empty();
}

// The arrays by the names that their weights have in the model; `how` says what was done to the names.
Arrays named_as_model(const Model& model, const Arrays& arrays, const std::string& source, std::string* how) {
  std::vector<std::string> names;
  for (const auto& [name, array] : arrays) names.push_back(name);
  const NamePrefix prefix = common_prefix(weight_names(model), names);
  Arrays named;
  for (const auto& [name, array] : arrays) named[prefix.apply(name)] = array;
  if (!prefix.empty()) *how = concat(", ", prefix.text());
  transpose_parameters(model, &named);
  join_tied(*model.graph, source, &named);
  return named;
}

// Whether an embedding and another layer read the weight.
bool is_tied(const Value& weight) {
  const auto looks_up = [](const Use& use) { return use.node->is("Gather"); };
  return weight.uses().size() > 1 && std::any_of(weight.uses().begin(), weight.uses().end(), looks_up) &&
         !std::all_of(weight.uses().begin(), weight.uses().end(), looks_up);
}

// The name of a tied weight that the file has under its other one, which no file of a model tells: if the one such
// weight of the model without an array and one array without a weight have one shape, they are the same.
void match_tied(const Graph& graph, Arrays* arrays, std::string* how) {
  std::vector<const Value*> left;
  for (const Value* value : graph.initializers()) {
    if (is_tied(*value) && !value->is_constant() && !arrays->count(value->name())) left.push_back(value);
  }
  std::vector<std::string> unknown;
  for (const auto& [name, array] : *arrays) {
    if (!graph.find(name) && left.size() == 1 && array.shape() == left[0]->type().shape()) unknown.push_back(name);
  }
  if (left.size() != 1 || unknown.size() != 1) return;
  *how += concat("; '", left[0]->name(), "', which an embedding and a layer share, is its '", unknown[0], "'");
  (*arrays)[left[0]->name()] = arrays->at(unknown[0]);
  arrays->erase(unknown[0]);
}

void assign_all(Model* model, const Arrays& given, const std::string& source, WeightsOfFile wants) {
  const bool whole = wants != WeightsOfFile::kOfAdapter;
  Graph& graph = *model->graph;
  std::string how;
  Arrays arrays = named_as_model(*model, given, source, &how);
  if (whole) match_tied(graph, &arrays, &how);
  std::vector<std::string> unknown, kept;
  std::unordered_set<const Value*> assigned;
  for (const auto& [name, array] : arrays) {
    Value* value = graph.find(name);
    if (!value || !value->is_initializer() || value->is_constant() || !value->type().is_static()) {
      unknown.push_back(name);
    } else if (is_new_head(*model, name) && array.shape() != value->type().shape()) {
      kept.push_back(name);
    } else {
      assigned.insert(replace_initializer(&graph, value, changed_initializer(*value, fitted(array, *value, source))));
    }
  }
  graph.remove_unused_initializers();
  std::vector<std::string> left;
  const auto constants = constants_of(*model);
  for (const Value* value : graph.initializers()) {
    if (is_float(value->dtype()) && value->has_rank() && value->rank() > 0 && !assigned.count(value) &&
        !is_new_head(*model, value->name()) && !value->is_constant() && !constants.count(value->name()))
      left.push_back(value->name());
  }
  if (assigned.empty()) {
    fail_as(ErrorCode::kWeightsMisfit, source, ": none of its names is one of the model's: it has ", listed(unknown),
            unknown.empty() ? "none" : "", "; the model has ", listed(left), ": `onnx-train show` lists them");
  }
  if (wants == WeightsOfFile::kAll && !left.empty()) {
    fail_as(ErrorCode::kWeightsMisfit, source, " has ", assigned.size(), " of the model's ",
            assigned.size() + left.size(), " weights, and not ", listed(left),
            unknown.empty() ? "" : concat("; not in the model: ", listed(unknown)),
            ": --weights-partial leaves those as they are");
  }
  add_adapted_note(model,
                   concat("weights: ", assigned.size(), " tensors from ", source, how,
                          unknown.empty() ? "" : concat("; not in the model: ", listed(unknown)),
                          kept.empty() ? "" : concat("; of another shape than the new head, left out: ", listed(kept)),
                          left.empty() || !whole ? "" : concat("; not in the file, as they were: ", listed(left))));
}

}  // namespace

Pass assign_weights(std::shared_ptr<const Arrays> arrays, const std::string& source, WeightsOfFile wants) {
  return {"assign_weights", [arrays, source, wants](Model& model) {
            assign_all(&model, *arrays, source, wants);
            return true;
          }};
}

}  // namespace onnx_train
