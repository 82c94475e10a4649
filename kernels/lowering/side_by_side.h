// Nodes that may run at one place: nothing but views reads a result of one of them before the last. Pure functions.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/lowering/lowering.h"
#include "kernels/lowering/positions.h"

namespace onnx_train {

// The position of the first node that reads the value, or a view of it; the largest number if there is none.
inline int first_reader(const Value* value, const Positions& positions) {
  int first = std::numeric_limits<int>::max();
  for (const Use& use : value->uses()) {
    if (&use.node->graph() != &value->graph()) return 0;
    first = std::min(first, is_view(*use.node) ? first_reader(use.node->output(), positions) : positions.of(use.node));
  }
  return first;
}

// Groups of at least two nodes of `graph` with the same key, in the order of the graph. Nodes with an empty key are in
// none.
inline std::vector<std::vector<Node*>> side_by_side(const Graph& graph,
                                                    const std::function<std::string(const Node&)>& key_of) {
  struct Group {
    std::string key;
    std::vector<Node*> nodes;
    int end;  // the position of the first reader
  };
  const Positions positions(graph);
  std::vector<Group> groups;
  for (Node* node = graph.first(); node; node = node->next()) {
    const std::string key = key_of(*node);
    if (key.empty()) continue;
    int end = std::numeric_limits<int>::max();
    for (const Value* result : node->outputs()) end = std::min(end, first_reader(result, positions));
    const int position = positions.of(node);
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.key == key && g.end > position; });
    if (group == groups.end()) {
      groups.push_back({key, {node}, end});
    } else {
      group->nodes.push_back(node);
      group->end = std::min(group->end, end);
    }
  }
  std::vector<std::vector<Node*>> found;
  for (Group& group : groups) {
    if (group.nodes.size() > 1) found.push_back(std::move(group.nodes));
  }
  return found;
}

}  // namespace onnx_train
