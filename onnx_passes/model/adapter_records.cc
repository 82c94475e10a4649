#include "onnx_passes/model/adapter_records.h"

#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

std::string module_of_part(const AdapterPart& part) {
  return part.tensor.substr(0, part.tensor.rfind("." + part.part));
}

void record_part(Model* model, const AdapterPart& part) {
  model->set_metadata(std::string(kAdapterRecord) + part.tensor, part.part + " " + part.weight);
}

std::vector<AdapterPart> adapter_parts(const Model& model) {
  std::vector<AdapterPart> found;
  for (const auto& entry : model.shell().metadata_props()) {
    if (!entry.key().starts_with(kAdapterRecord)) continue;
    const size_t space = entry.value().find(' ');
    if (space == std::string::npos) continue;
    found.push_back(
        {entry.key().substr(kAdapterRecord.size()), entry.value().substr(0, space), entry.value().substr(space + 1)});
  }
  return found;
}

bool has_adapters(const Model& model) { return !model.metadata(kAdapter).empty(); }

std::unordered_set<std::string> trained_with_adapters(const Model& model) {
  std::unordered_set<std::string> names;
  if (!has_adapters(model)) return names;
  for (const auto& entry : model.shell().metadata_props()) {
    for (const std::string_view prefix : {kAdapterRecord, kHeadRecord}) {
      if (entry.key().starts_with(prefix)) names.insert(entry.key().substr(prefix.size()));
    }
  }
  return names;
}

bool is_adapter_record(const std::string& key, const Graph& graph) {
  if (key == kAdapter) return true;
  for (const std::string_view prefix : {kAdapterRecord, kHeadRecord}) {
    if (key.starts_with(prefix)) return graph.find(key.substr(prefix.size())) != nullptr;
  }
  return false;
}

void forget_adapters(Model* model) {
  auto* properties = model->shell().mutable_metadata_props();
  for (int i = properties->size() - 1; i >= 0; --i) {
    const std::string& key = properties->Get(i).key();
    if (key == kAdapter || key.starts_with(kAdapterRecord) || key.starts_with(kHeadRecord))
      properties->DeleteSubrange(i, 1);
  }
}

std::string module_of(const std::string& weight) {
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (weight.size() > suffix.size() && weight.ends_with(suffix))
      return weight.substr(0, weight.size() - suffix.size());
  }
  return weight;
}

}  // namespace onnx_train
