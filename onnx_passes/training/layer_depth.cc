#include "onnx_passes/training/layer_depth.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_roles.h"

namespace onnx_train {
namespace {

struct WeightModule {
  std::string name;  // "" where the weight's name has no parts
  bool numbered = false;
};

WeightModule module_of(const Value& weight) {
  const std::vector<std::string> original = original_names(weight);
  const std::string& name = original.empty() ? weight.name() : original[0];
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const bool digits = end > begin && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                                                   name.begin() + static_cast<std::ptrdiff_t>(end),
                                                   [](char c) { return c >= '0' && c <= '9'; });
    if (digits && end < name.size()) return {name.substr(0, end), true};
    begin = end + 1;
  }
  const size_t last = name.rfind('.');
  return {last == std::string::npos ? "" : name.substr(0, last), false};
}

class DepthFinder {
 public:
  DepthFinder(const Graph& graph, const std::vector<Value*>& weights) : graph_(graph) {
    std::set<const Value*> chosen(weights.begin(), weights.end());
    for (const Value* value : graph.initializers()) {
      const bool read = is_float(value->dtype()) && !value->is_constant() && use_of(*value).role != WeightRole::kOther;
      if (read || chosen.count(value)) modules_.try_emplace(value, module_of(*value));
    }
    for (const auto& [weight, module] : modules_) named_ = named_ || !module.name.empty();
  }

  LayerDepths run() {
    for (const Value* input : graph_.inputs()) {
      if (!input->is_initializer()) depth_.try_emplace(input, 0);
    }
    for (const Node* node = graph_.first(); node; node = node->next()) visit(*node);
    for (const auto& [weight, module] : modules_) place(weight, 0);  // that no result depends on
    join_ends();
    return ranked();
  }

 private:
  // Weights wait in values that depend on them alone, such as a Transpose, for a node that reads data, too.
  void visit(const Node& node) {
    std::vector<const Value*> waiting;
    int64_t data = -1;
    for_each_input(node, [&](const Value* input) {
      if (modules_.count(input)) waiting.push_back(input);
      if (const auto* carried = carried_.find(input)) waiting.insert(waiting.end(), carried->begin(), carried->end());
      if (const int64_t* depth = depth_.find(input)) data = std::max(data, *depth);
    });
    if (data < 0) {
      for (const Value* output : node.outputs()) {
        if (output && !waiting.empty()) carried_.try_emplace(output, waiting);
      }
      return;
    }
    int64_t depth = data;
    for (const Value* weight : waiting) depth = std::max(depth, place(weight, data));
    for (const Value* output : node.outputs()) {
      if (output) depth_.try_emplace(output, depth);
    }
  }

  // Returns the depth of the weight, whose first reader reads data of depth `data`.
  int64_t place(const Value* weight, int64_t data) {
    const auto known = of_.find(weight);
    if (known != of_.end()) return known->second;
    const WeightModule& module = modules_.at(weight);
    const bool opens = !module.name.empty() || (!named_ && weight->has_rank() && weight->rank() > 1);
    int64_t depth = opens ? data + 1 : data;
    if (!module.name.empty()) depth = layers_.try_emplace(module.name, depth).first->second;
    return of_[weight] = depth;
  }

  void join_ends() {
    int64_t first = -1, last = -1;
    for (const auto& [weight, module] : modules_) {
      if (!module.numbered) continue;
      first = first < 0 ? of_[weight] : std::min(first, of_[weight]);
      last = std::max(last, of_[weight]);
    }
    if (first < 0) return;
    for (auto& [weight, depth] : of_) {
      if (modules_.at(weight).numbered) continue;
      depth = std::clamp(depth, first - 1, last + 1);
    }
  }

  LayerDepths ranked() const {
    std::map<int64_t, std::vector<std::string>> by_depth;
    for (const Value* weight : graph_.initializers()) {  // in the file's order
      const auto found = of_.find(weight);
      if (found == of_.end()) continue;
      const WeightModule& module = modules_.at(weight);
      std::vector<std::string>& names = by_depth[found->second];
      const std::string& name = module.name.empty() ? weight->name() : module.name;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    LayerDepths result;
    std::map<int64_t, size_t> ranks;
    for (const auto& [depth, names] : by_depth) {
      ranks[depth] = result.layers.size();
      std::string text;
      for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
      result.layers.push_back(text);
    }
    for (const auto& [weight, depth] : of_) result.of[weight] = ranks.at(depth);
    return result;
  }

  const Graph& graph_;
  std::unordered_map<const Value*, WeightModule> modules_;
  bool named_ = false;                               // some name has parts
  std::unordered_map<std::string, int64_t> layers_;  // depth of modules
  std::unordered_map<const Value*, int64_t> of_;     // depth of weights
  ValueTable<int64_t> depth_;                        // of values that depend on data
  ValueTable<std::vector<const Value*>> carried_;    // weights in values that do not
};

}  // namespace

double LayerDepths::rate(const Value* weight, double decay) const {
  const auto found = of.find(weight);
  return found == of.end() ? 1 : std::pow(decay, static_cast<double>(layers.size() - 1 - found->second));
}

LayerDepths layer_depths(const Graph& graph, const std::vector<Value*>& weights) {
  return DepthFinder(graph, weights).run();
}

}  // namespace onnx_train
