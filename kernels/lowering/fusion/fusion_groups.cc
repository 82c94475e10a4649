#include "kernels/lowering/fusion/fusion_groups.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "onnx_passes/ir/inputs.h"

namespace onnx_train {

FusionGroups::FusionGroups(Graph& graph, const CanFuse& can_fuse)
    : graph_(graph), can_fuse_(can_fuse), outputs_(graph.outputs()) {
  for (Node* node = graph.first(); node; node = node->next()) visit(node);
}

// ---- Growing

void FusionGroups::visit(Node* node) {
  int outside = 0;  // highest level of the inputs from outside all groups
  std::vector<int> sources;
  for_each_input(*node, [&](const Value* input) {
    const Node* producer = input->producer();
    const int g = producer ? of(producer) : -1;
    if (g < 0) {
      const int* level = producer ? level_of_.find(producer) : nullptr;
      if (level) outside = std::max(outside, *level);
    } else if (std::find(sources.begin(), sources.end(), g) == sources.end()) {
      sources.push_back(g);
    }
  });
  FusionGroups& groups = *this;
  int deepest = outside;
  for (int g : sources) deepest = std::max(deepest, groups[g].level);
  std::vector<int> joined;
  for (int g : sources) {
    if (groups[g].level == deepest) joined.push_back(g);
  }
  if (!node->subgraphs().empty() || !can_fuse(*node)) {
    level_of_[node] = deepest + (joined.empty() ? 0 : 1);
  } else if (joined.empty() || !join(node, joined)) {
    start_group(node, deepest + (joined.empty() ? 0 : 1));
  }
}

bool FusionGroups::join(Node* node, const std::vector<int>& joined) {
  FusionGroups& groups = *this;
  Space space = groups[joined[0]].space;
  size_t nodes = 1;
  for (int g : joined) {
    const auto both = merge(space, groups[g].space);
    if (!both) return false;
    space = *both;
    nodes += groups[g].nodes.size();
  }
  const auto value_extent_of = [&](const Value* value) {
    const int g = value->producer() ? of(value->producer()) : -1;
    return std::find(joined.begin(), joined.end(), g) == joined.end() ? std::nullopt
                                                                      : std::optional(value_extents_.at(value));
  };
  const auto value_extent = nodes > kMaxNodes ? std::nullopt : fit(*node, value_extent_of, &space);
  if (!value_extent) return false;
  const int into = unite(joined);
  groups[into].space = space;
  add(node, into);
  value_extents_[node->output()] = *value_extent;
  return true;
}

// Merges the smaller groups into the largest one.
int FusionGroups::unite(const std::vector<int>& joined) {
  FusionGroups& groups = *this;
  const int into = *std::max_element(joined.begin(), joined.end(),
                                     [&](int a, int b) { return groups[a].nodes.size() < groups[b].nodes.size(); });
  for (int g : joined) {
    if (g == into) continue;
    for (Node* node : groups[g].nodes) add(node, into);
    groups[g].nodes.clear();
  }
  return into;
}

void FusionGroups::start_group(Node* node, int level) {
  Group fresh;
  fresh.level = level;
  const auto nothing = [](const Value*) -> std::optional<ValueExtent> { return std::nullopt; };
  const auto value_extent = fit(*node, nothing, &fresh.space);
  if (!value_extent) {
    level_of_[node] = level;
    return;
  }
  groups_.push_back(std::move(fresh));
  add(node, count() - 1);
  value_extents_[node->output()] = *value_extent;
}

// ---- Modification and queries

void FusionGroups::add(Node* node, int g) {
  (*this)[g].nodes.push_back(node);
  assign(node, g);
}

void FusionGroups::dissolve(int g) {
  std::vector<Node*>& nodes = (*this)[g].nodes;
  for (const Node* node : nodes) release(node);
  nodes.clear();
}

void FusionGroups::number_nodes() {
  int position = 0;
  for (Node* node = graph_.first(); node; node = node->next()) position_[node] = position++;
}

void FusionGroups::sort(std::vector<Node*>* nodes) const {
  std::sort(nodes->begin(), nodes->end(), [&](const Node* a, const Node* b) { return position(a) < position(b); });
}

std::vector<Value*> FusionGroups::full_inputs(int g) {
  const Group& group = (*this)[g];
  std::vector<Value*> inputs;
  std::unordered_set<const Value*> seen;
  for (const Node* node : group.nodes) {
    for (int i = 0; i < num_operands(*node); ++i) {
      Value* input = node->input(i);
      if (!input || (input->producer() && of(input->producer()) == g) || !seen.insert(input).second) continue;
      if (num_elements_of(*input) == group.space.size) inputs.push_back(input);
    }
  }
  std::sort(inputs.begin(), inputs.end(), [&](const Value* a, const Value* b) { return place(a) < place(b); });
  return inputs;
}

}  // namespace onnx_train
