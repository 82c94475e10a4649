#include "onnx_passes/adapt/file_names.h"

#include <algorithm>

#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/ir/equal_tensors.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/weight_origin.h"

namespace onnx_train {
namespace {

struct RenamingRule {
  std::string before, after, to_before, to_after;  // what stands around the '*'
};

RenamingRule parse_renaming(const std::string& rule) {
  const size_t equals = rule.find('=');
  const std::string from = rule.substr(0, equals), to = equals == std::string::npos ? "" : rule.substr(equals + 1);
  const size_t star = from.find('*'), other = to.find('*');
  if (star == std::string::npos || other == std::string::npos || from.find('*', star + 1) != std::string::npos ||
      to.find('*', other + 1) != std::string::npos)
    fail_as(ErrorCode::kUsage, "--rename: '", rule, "' is not FROM=TO with one * in each, such as 'm.*=*'");
  return {from.substr(0, star), from.substr(star + 1), to.substr(0, other), to.substr(other + 1)};
}

}  // namespace

std::string NamePrefix::apply(const std::string& name) const {
  if (!dropped.empty()) return name.starts_with(dropped) ? name.substr(dropped.size()) : name;
  return added + name;
}

std::string NamePrefix::text() const {
  return dropped.empty() ? concat("with '", added, "' before its names")
                         : concat("without '", dropped, "' of its names");
}

NamePrefix common_prefix(const std::set<std::string>& known, const std::vector<std::string>& names) {
  std::map<std::pair<std::string, std::string>, size_t> counts;
  for (const std::string& name : names) {
    if (known.count(name)) return {};
    for (const std::string& own : known) {
      if (own.size() > name.size() && own.ends_with("." + name))
        ++counts[{own.substr(0, own.size() - name.size()), ""}];
      if (name.size() > own.size() && name.ends_with("." + own))
        ++counts[{"", name.substr(0, name.size() - own.size())}];
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? NamePrefix() : NamePrefix{most->first.first, most->first.second};
}

std::set<std::string> weight_names(const Model& model) {
  std::set<std::string> names;
  for (const auto& [own, name] : transposed_parameters(model)) names.insert(name);
  for (const Value* value : model.graph->initializers()) {
    names.insert(value->name());
    for (const std::string& name : names_of_readers(*value)) names.insert(name);
  }
  return names;
}

std::map<std::string, std::string> transposed_parameters(const Model& model) {
  // Of each module that nodes are named after: its layers, and how many nodes it has, those of modules within included.
  std::map<std::string, std::vector<LinearLayer>> layers;
  std::map<std::string, size_t> nodes;
  for (const LinearLayer& layer : LinearLayers(model).all()) {
    const bool is_direct = layer.node->input(1) == layer.weight && layer.weight->uses().size() == 1;
    if (layer.node->is("MatMul") && is_direct && layer.weight->name().starts_with("onnx::MatMul_"))
      layers[module_of_scope(layer.node->name())].push_back(layer);
  }
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (!node->domain().empty()) continue;
    std::string module = module_of_scope(node->name());
    for (; !module.empty(); module.resize(module.find('.') == std::string::npos ? 0 : module.rfind('.')))
      ++nodes[module];
  }
  std::map<std::string, std::string> names;
  for (const auto& [module, of_module] : layers) {
    const LinearLayer& layer = of_module[0];
    if (module.empty() || of_module.size() > 1 || nodes[module] != (layer.adds_bias ? 2 : 1)) continue;
    const std::string bias = layer.adds_bias ? layer.bias->name() : module + ".bias";
    const std::string own = bias.substr(0, bias.rfind('.'));  // a bias tells containers, too, which a scope lacks
    const bool is_own = !layer.adds_bias || layer.bias->uses().size() == 1;
    const bool is_linear = is_own && bias == own + ".bias" && may_be_scope_of(module, own);
    if (is_linear && !model.graph->find(own + ".weight")) names[layer.weight->name()] = own + ".weight";
  }
  return names;
}

void transpose_parameters(const Model& model, std::map<std::string, Tensor>* arrays) {
  for (const auto& [own, name] : transposed_parameters(model)) {
    const auto found = arrays->find(name);
    if (found == arrays->end() || arrays->count(own) || found->second.shape().size() != 2) continue;
    (*arrays)[own] = transposed(found->second);
    arrays->erase(found);
  }
}

void join_tied(const Graph& graph, const std::string& source, std::map<std::string, Tensor>* arrays) {
  for (const Value* weight : graph.initializers()) {
    for (const std::string& name : names_of_readers(*weight)) {
      const auto found = arrays->find(name);
      if (found == arrays->end() || graph.find(name)) continue;
      const Tensor value = found->second;
      arrays->erase(found);
      const Tensor& own = arrays->emplace(weight->name(), value).first->second;
      if (are_same(own, value)) continue;
      fail_as(ErrorCode::kData, source, ": '", name, "' and '", weight->name(),
              "' differ, and are one weight in the model: --untie ", weight->name(), " makes two of it");
    }
  }
}

void check_renaming(const std::string& rule) { parse_renaming(rule); }

std::string renamed(const std::string& name, const std::vector<std::string>& rules) {
  for (const std::string& text : rules) {
    const RenamingRule rule = parse_renaming(text);
    const size_t around = rule.before.size() + rule.after.size();
    if (name.size() <= around || !name.starts_with(rule.before) || !name.ends_with(rule.after)) continue;
    return rule.to_before + name.substr(rule.before.size(), name.size() - around) + rule.to_after;
  }
  return name;
}

}  // namespace onnx_train
