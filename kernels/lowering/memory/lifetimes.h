// Lifetimes of the values of a graph, in the order of its nodes: the memory that a plan needs, as far as it is known
// before kernels are chosen. A view shares the memory of its input, and so does a piece of an input or constant. The
// plan decides later about other pieces and the inputs of a Concat (views.h), which never needs more memory. Inputs,
// constants and outputs of the graph have their own memory outside the arena.
//
// Computed for one state of the graph; owned by the caller, immutable, valid until the graph changes.
#pragma once

#include <vector>

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// Returns the bytes of a value, 0 if its shape is unknown.
size_t bytes_of(const Value& value);

// A value together with the views of it.
struct Lifetime {
  const Value* value;
  size_t bytes;           // 0 if the memory is not in the arena
  int first;              // the node that writes it; -1 for inputs and constants
  std::vector<int> uses;  // the nodes that read it, in order
  bool fixed = false;     // an output of the graph shares the memory, or a subgraph reads it: it cannot be moved

  int last() const { return uses.empty() ? first : uses.back(); }
};

struct Lifetimes {
  explicit Lifetimes(const Graph& graph);

  const Lifetime& of(const Value* value) const { return all[index.at(value)]; }
  // Whether the node's outputs are contiguous pieces of the memory of an input or constant.
  bool is_piece_of_input(const Node& node) const;
  // The first node with the most bytes alive (the peak step); -1 for an empty graph.
  int peak_step() const;

  std::vector<Node*> nodes;
  NodeTable<int> position;
  std::vector<Lifetime> all;
  ValueTable<size_t> index;   // index into `all`; views have the index of their memory
  std::vector<size_t> alive;  // bytes alive while each node runs
};

}  // namespace onnx_train
