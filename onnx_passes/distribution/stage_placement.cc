#include "onnx_passes/distribution/stage_placement.h"

#include <algorithm>
#include <vector>

#include "onnx_passes/ir/inputs.h"

namespace onnx_train {

StagePlacement::StagePlacement(const Graph& graph, const StateOwners& owners, const std::set<std::string>& states,
                               const std::map<std::string, Shape>& given)
    : graph_(graph), next_(graph) {
  for (const Value* input : graph_.inputs()) {
    if (states.count(input->name())) states_.insert(input);
    if (given.count(input->name())) given_.insert(input);
  }
  find_phases();
  for (const Value* input : graph_.inputs()) {
    const auto found = owners.find(input->name());
    if (found == owners.end()) continue;
    stage_[input] = found->second;
    has_[input].insert(found->second);
  }
  for (const Node* node = graph_.first(); node; node = node->next()) place(*node);
}

// Forward is what outputs and states other than sums of gradients are computed from.
void StagePlacement::find_phases() {
  Marks<Value> changing, wanted;
  for (const Value* input : graph_.inputs()) {
    if (changes(*input)) changing.insert(input);
  }
  for (const Value* output : graph_.outputs()) {
    const Value* state = output->has_role(roles::kNext) ? graph_.find(output->role()->of) : nullptr;
    if (!state || !state->has_role(roles::kGradientSum)) wanted.insert(output);
  }
  for (const Node* node = graph_.last(); node; node = node->previous()) {
    const bool is_wanted = std::any_of(node->outputs().begin(), node->outputs().end(),
                                       [&](const Value* output) { return output && wanted.contains(output); });
    phase_[node] = is_wanted ? Phase::kForward : Phase::kBackward;
    if (is_wanted) for_each_input(*node, [&](const Value* v) { wanted.insert(v); });
  }
  for (const Node* node = graph_.first(); node; node = node->next()) {
    bool changes = false;
    for_each_input(*node, [&](const Value* v) { changes = changes || changing.contains(v); });
    if (!changes) {
      phase_[node] = Phase::kOnce;
      continue;
    }
    for (const Value* output : node->outputs()) {
      if (output) changing.insert(output);
    }
  }
}

// A node of the forward pass is computed on the last stage that has one of its values; a node of the backward pass on
// the last one that has all its values of the forward pass, and not after that of the gradients.
void StagePlacement::place(const Node& node) {
  std::set<int> forward, backward;
  std::vector<const Value*> values;  // of the forward pass
  for_each_input(node, [&](const Value* v) {
    if (stage(*v) == kEveryStage) return;
    if (phase(*v) == Phase::kBackward) {
      backward.insert(stage(*v));
    } else {
      forward.insert(stage(*v));
      values.push_back(v);
    }
  });
  if (forward.empty() && backward.empty()) return;
  int at = forward.empty() ? *backward.begin() : *forward.rbegin();
  if (phase(node) == Phase::kBackward) {
    // A view of an activation, for the gradient of a weight, belongs to the stage that has the weight.
    for (const Value* v : values) at = std::max(at, *has_[v].rbegin());
    if (!backward.empty()) at = *backward.begin();
    const auto has_all = [&](int s) {
      return std::all_of(values.begin(), values.end(), [&](const Value* v) { return has_[v].contains(s); });
    };
    int with_all = at;
    while (with_all >= 0 && !has_all(with_all)) --with_all;
    if (with_all >= 0) at = with_all;
    for (const Value* output : node.outputs()) {
      const Value* state = output && output->has_role(roles::kNext) ? graph_.find(output->role()->of) : nullptr;
      if (state && stage(*state) != kEveryStage) at = stage(*state);
    }
  } else {
    for (const Value* v : values) has_[v].insert(at);
  }
  node_stage_[&node] = at;
  for (const Value* output : node.outputs()) {
    if (!output) continue;
    stage_[output] = at;
    has_[output].insert(at);
  }
  for (const Value* v : values) has_[v].insert(stage(*v));
}

}  // namespace onnx_train
