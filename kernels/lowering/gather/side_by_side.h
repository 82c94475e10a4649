// Groups of independent nodes, which may run at one position. Pure functions.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/lowering/support/lowering.h"
#include "kernels/lowering/support/positions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

// Returns the number of elements of a row.
inline int64_t row_of(const Value& table) {
  const Shape shape = table.type().shape();
  return num_elements(Shape(shape.begin() + 1, shape.end()));
}

inline bool has_rows(const Value* value) {
  return value && value->type().is_static() && value->rank() > 0 && num_elements(value->type().shape()) > 0;
}

// Returns the position of the first reader of the value or of a view of it, or the largest number if there is none.
inline int first_reader(const Value* value, const Positions& positions) {
  int first = std::numeric_limits<int>::max();
  for (const Use& use : value->uses()) {
    if (&use.node->graph() != &value->graph()) return 0;
    first = std::min(first, is_view(*use.node) ? first_reader(use.node->output(), positions) : positions.of(use.node));
  }
  return first;
}

// Returns groups of at least two nodes of `graph` with the same key, in graph order, without nodes whose key is empty.
// If the caller moves readers after the group (`moves_readers`), a node after such readers may join when its inputs
// precede the first member.
inline std::vector<std::vector<Node*>> side_by_side(const Graph& graph,
                                                    const std::function<std::string(const Node&)>& key_of,
                                                    bool moves_readers) {
  struct Cluster {
    std::string key;
    std::vector<Node*> nodes;
    int end;  // position of the first reader
  };
  const Positions positions(graph);
  std::vector<Cluster> groups;
  for (Node* node = graph.first(); node; node = node->next()) {
    const std::string key = key_of(*node);
    if (key.empty()) continue;
    const auto takes = [&](const Cluster& group) {
      const auto is_there = [&](const Value* input) { return !input || positions.is_before(input, group.nodes[0]); };
      const auto& inputs = node->inputs();
      return group.key == key &&
             (group.end > positions.of(node) || (moves_readers && std::all_of(inputs.begin(), inputs.end(), is_there)));
    };
    auto group = std::find_if(groups.begin(), groups.end(), takes);
    if (group == groups.end()) group = groups.insert(group, {key, {}, std::numeric_limits<int>::max()});
    group->nodes.push_back(node);
    for (const Value* result : node->outputs()) group->end = std::min(group->end, first_reader(result, positions));
  }
  std::vector<std::vector<Node*>> found;
  for (Cluster& group : groups) {
    if (group.nodes.size() > 1) found.push_back(std::move(group.nodes));
  }
  return found;
}

}  // namespace onnx_train
