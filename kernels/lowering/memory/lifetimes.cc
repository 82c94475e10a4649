#include "kernels/lowering/memory/lifetimes.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>

#include "kernels/lowering/memory/pieces.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/inputs.h"

namespace onnx_train {

size_t bytes_of(const Value& value) {
  if (!value.type().is_static()) return 0;  // no kernel supports it: preparing the plan fails
  return static_cast<size_t>(num_elements(value.type().shape())) * size_of(value.dtype());
}

namespace {

size_t aligned_bytes_of(const Value& value) { return align_up(bytes_of(value)); }

}  // namespace

Lifetimes::Lifetimes(const Graph& graph) : nodes(graph.nodes()) {
  const auto add = [&](const Value* value, int first, size_t bytes) {
    if (index.try_emplace(value, all.size()).second) all.push_back({value, bytes, first, {}});
  };
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    const Node& node = *nodes[static_cast<size_t>(i)];
    position[&node] = i;
    if (is_view(node) || is_piece_of_input(node)) {
      add(node.input(0), -1, 0);
      for (const Value* output : node.outputs()) {
        if (output) index.try_emplace(output, index.at(node.input(0)));
      }
      continue;
    }
    for_each_input(node, [&](const Value* input) {
      add(input, -1, 0);
      std::vector<int>& uses = all[index.at(input)].uses;
      if (uses.empty() || uses.back() != i) uses.push_back(i);
    });
    for (const auto& subgraph : node.subgraphs()) {
      for (const Node* n = subgraph.graph->first(); n; n = n->next()) {
        for_each_input(*n, [&](const Value* input) {
          if (const size_t* found = index.find(input)) all[*found].fixed = true;
        });
      }
    }
    for (const Value* output : node.outputs()) {
      if (output) add(output, i, aligned_bytes_of(*output));
    }
  }
  for (const Value* output : graph.outputs()) {
    add(output, -1, 0);
    Lifetime& lifetime = all[index.at(output)];
    lifetime.fixed = true;
    lifetime.bytes = 0;
  }
  // Bytes allocated at each node minus bytes freed before it.
  std::vector<size_t> born(nodes.size() + 1), dead(nodes.size() + 1);
  for (const Lifetime& lifetime : all) {
    if (lifetime.first < 0) continue;
    born[static_cast<size_t>(lifetime.first)] += lifetime.bytes;
    dead[static_cast<size_t>(lifetime.last()) + 1] += lifetime.bytes;
  }
  size_t now = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    now += born[i];
    now -= dead[i];
    alive.push_back(now);
  }
}

bool Lifetimes::is_piece_of_input(const Node& node) const {
  if (!node.is("Slice") && !node.is("Split")) return false;
  const size_t* whole = index.find(node.input(0));
  const bool of_input = whole ? all[*whole].first < 0 : !node.input(0)->producer();
  return of_input && !piece_offsets(node).empty();
}

int Lifetimes::peak_step() const {
  return alive.empty() ? -1 : static_cast<int>(std::max_element(alive.begin(), alive.end()) - alive.begin());
}

}  // namespace onnx_train
