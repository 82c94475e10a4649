// When the values of a graph are alive, in the order of its nodes: what a plan needs memory for, as far as it can be
// told before kernels are chosen. A view is its input's memory, and so is a piece of an input or a constant. (Other
// pieces, and what is written to its place in a Concat, the plan chooses last: runtime/views.h. That needs no more than
// this tells.) Inputs, constants and outputs of the graph have memory of their own, which no plan's arena holds.
#pragma once

#include <vector>

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// Of a value whose shape is known.
size_t bytes_of(const Value& value);

// A value and the views of it.
struct Lifetime {
  const Value* value;
  size_t bytes;           // 0 where the memory is not the plan's
  int first;              // the node that writes it; -1 for inputs and constants
  std::vector<int> uses;  // the nodes that read it, in order
  bool fixed = false;     // an output of the graph is its memory, or a subgraph reads it: it stays as it is

  int last() const { return uses.empty() ? first : uses.back(); }
};

struct Lifetimes {
  explicit Lifetimes(const Graph& graph);

  const Lifetime& of(const Value* value) const { return all[index.at(value)]; }
  // The node's outputs are stretches of an input's or constant's memory.
  bool is_piece_of_input(const Node& node) const;
  // The node with the most bytes alive: the first of them; -1 in an empty graph.
  int fullest() const;

  std::vector<Node*> nodes;
  NodeTable<int> position;
  std::vector<Lifetime> all;
  ValueTable<size_t> index;   // views have their memory's
  std::vector<size_t> alive;  // bytes while each node runs
};

}  // namespace onnx_train
