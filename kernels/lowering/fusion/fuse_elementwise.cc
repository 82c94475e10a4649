// Selects the nodes of each `Fused` call in steps: groups grow (fusion_groups.h); a group is merged into another if no
// other group reads it; values that are cheaper to compute than to read are recomputed (rematerialize_in_region.cc);
// nodes that are free outside a group leave it; small groups without readers are merged. Then the nodes of each group
// are made adjacent, in the old order of all other nodes, and outlined.
#include <algorithm>
#include <unordered_map>

#include "kernels/lowering/fusion/fusion_groups.h"
#include "kernels/lowering/gather/regroup.h"
#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/outline.h"
#include "kernels/lowering/types/rounding.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Whether the nodes, in this order, form one fusion region by the kernel's own criterion.
bool fit_together(const std::vector<Node*>& nodes) {
  std::unordered_map<const Value*, ValueExtent> placed;
  const auto value_extent_of = [&](const Value* value) {
    const auto found = placed.find(value);
    return found == placed.end() ? std::nullopt : std::optional(found->second);
  };
  Space space;
  for (const Node* node : nodes) {
    const auto value_extent = fit(*node, value_extent_of, &space);
    if (!value_extent) return false;
    placed[node->output()] = *value_extent;
  }
  return true;
}

// ---- Sinking

// Moves the widening of a 16-bit value into the only group that reads it: half as many bytes stay alive.
void hand_over(FusionGroups& groups, Node* node) {
  const int from = groups.of(node);
  if (from < 0 || !is_widening(*node) || groups.is_graph_output(node->output())) return;
  int to = -1;
  for (const Use& use : node->output()->uses()) {
    const int reader = groups.of(use.node);
    if (reader < 0 || reader == from || (to >= 0 && reader != to)) return;
    to = reader;
  }
  if (to < 0 || groups[to].nodes.size() >= FusionGroups::kMaxNodes) return;
  std::vector<Node*> nodes = groups[to].nodes;
  nodes.push_back(node);
  groups.sort(&nodes);
  if (!fit_together(nodes)) return;
  std::erase(groups[from].nodes, node);
  groups[to].nodes = std::move(nodes);
  groups.assign(node, to);
}

// Moves the nodes of a group into another, unless the result is no region or has too many nodes.
bool merge_into(FusionGroups& groups, int g, int into, size_t most_nodes) {
  if (groups[g].nodes.size() + groups[into].nodes.size() > most_nodes) return false;
  const auto space = merge(groups[g].space, groups[into].space);
  if (!space) return false;
  std::vector<Node*> nodes = groups[g].nodes;
  nodes.insert(nodes.end(), groups[into].nodes.begin(), groups[into].nodes.end());
  groups.sort(&nodes);
  if (!fit_together(nodes)) return false;
  for (Node* node : groups[g].nodes) groups.assign(node, into);
  groups[into].space = *space;
  groups[into].nodes = std::move(nodes);
  groups[g].nodes.clear();
  return true;
}

// Merges a group into the only group that reads it, if that keeps no more bytes alive in between.
void sink(FusionGroups& groups, int g) {
  int reader = -1, results = 0;
  for (const Node* node : groups[g].nodes) {
    if (groups.is_graph_output(node->output())) return;
    bool outside = false;
    for (const Use& use : node->output()->uses()) {
      const int to = groups.of(use.node);
      if (to == g) continue;
      if (to < 0 || (reader >= 0 && reader != to)) return;
      reader = to;
      outside = true;
    }
    results += outside && num_elements_of(*node->output()) == groups[g].space.size;
  }
  if (reader < 0) return;
  const std::vector<Value*> read = groups.full_inputs(reader), ours = groups.full_inputs(g);
  const auto kept_anyway = [&](const Value* input) {
    return !input->producer() || std::find(read.begin(), read.end(), input) != read.end();
  };
  if (std::ssize(ours) - std::count_if(ours.begin(), ours.end(), kept_anyway) > results) return;
  merge_into(groups, g, reader, FusionGroups::kMaxNodes);
}

// ---- Nodes that stay in a group

// Splits a view that is read inside and outside the group into two.
void split_view(FusionGroups& groups, Node* view, int g) {
  Value* inside = view->output();
  std::vector<Use> uses_inside, uses_outside;
  for (const Use& use : inside->uses()) (groups.of(use.node) == g ? uses_inside : uses_outside).push_back(use);
  const bool is_output = groups.is_graph_output(inside);
  if (uses_inside.empty()) {
    groups.release(view);
  } else if (!uses_outside.empty() || is_output) {
    Graph& graph = groups.graph();
    Node* twin = graph.add_node(*view, view->inputs(), {graph.unique_name(inside->name())}, view->next());
    twin->output()->set_type(inside->type());
    twin->output()->set_elements(inside->elements());
    graph.replace(inside, twin->output());
    for (const Use& use : uses_inside) use.node->set_input(use.index, inside);
    if (is_output) groups.add_graph_output(twin->output());
  }
}

// Removes views from the group unless they connect two of its nodes: views are free outside a group but would be
// written inside it. Readers outside get their own view.
void trim_views(FusionGroups& groups, int g) {
  std::vector<Node*>& nodes = groups[g].nodes;
  for (Node* node : nodes) {
    const Node* producer = is_view(*node) ? node->input(0)->producer() : node;
    if (!producer || groups.of(producer) != g) groups.release(node);
  }
  for (size_t i = nodes.size(); i-- > 0;) {
    if (groups.of(nodes[i]) == g && is_view(*nodes[i])) split_view(groups, nodes[i], g);
  }
  std::erase_if(nodes, [&](const Node* node) { return groups.of(node) != g; });
}

// Removes the widening of a 16-bit value for readers outside: twice the bytes would stay alive until they run.
void trim_widenings(FusionGroups& groups, int g) {
  const auto is_read_here = [&](const Node* node) {
    const auto& uses = node->output()->uses();
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return groups.of(use.node) == g; });
  };
  std::erase_if(groups[g].nodes, [&](const Node* node) {
    if (!is_widening(*node) || is_read_here(node)) return false;
    groups.release(node);
    return true;
  });
}

// Whether the group has at least two nodes that compute and still forms a region.
bool is_worth_it(const std::vector<Node*>& nodes) {
  const auto computes = [](const Node* node) { return !is_view(*node); };
  return std::count_if(nodes.begin(), nodes.end(), computes) >= 2 && fit_together(nodes);
}

// ---- Groups that no other node reads

// Whether the group is small and no other node reads its results, as with running statistics.
bool is_small_leaf(FusionGroups& groups, int g) {
  constexpr int64_t kSmall = 1 << 14;  // this many elements take less time than a launch
  const Group& group = groups[g];
  const auto is_read_elsewhere = [&](const Node* node) {
    const auto& uses = node->output()->uses();
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return groups.of(use.node) != g; });
  };
  return !group.nodes.empty() && group.space.size <= kSmall &&
         std::none_of(group.nodes.begin(), group.nodes.end(), is_read_elsewhere);
}

// Merges small leaves of equal size at the position of the last, as no reader waits for them.
void merge_small_leaves(FusionGroups& groups) {
  constexpr size_t kMostNodes = FusionGroups::kMaxNodes / 2;  // a kernel has a parameter per value that it reads
  std::unordered_map<int64_t, int> last_of_size;
  for (int g = 0; g < groups.count(); ++g) {
    if (!is_small_leaf(groups, g)) continue;
    const auto [last, added] = last_of_size.try_emplace(groups[g].space.size, g);
    if (!added && !merge_into(groups, g, last->second, kMostNodes)) last->second = g;
  }
}

}  // namespace

bool fuse_elementwise(Model& model, const CanFuse& can_fuse) {
  Graph& graph = *model.graph;
  FusionGroups groups(graph, can_fuse);
  groups.number_nodes();
  for (Node* node = graph.first(); node; node = node->next()) hand_over(groups, node);
  for (int g = groups.count(); g-- > 0;) sink(groups, g);
  bool changed = rematerialize_in_region(&groups);
  groups.number_nodes();
  for (int g = 0; g < groups.count(); ++g) {
    groups.sort(&groups[g].nodes);
    trim_views(groups, g);
    trim_widenings(groups, g);
    if (!is_worth_it(groups[g].nodes)) groups.dissolve(g);
  }
  groups.number_nodes();  // trimming added views
  merge_small_leaves(groups);
  std::vector<std::vector<Node*>> together;
  for (int g = 0; g < groups.count(); ++g) {
    together.push_back(groups[g].nodes);
    changed |= !groups[g].nodes.empty();
  }
  if (!changed) return false;
  regroup(&graph, together);
  for (const std::vector<Node*>& nodes : together) {
    if (!nodes.empty()) outline(nodes, "Fused");
  }
  return true;
}

}  // namespace onnx_train
