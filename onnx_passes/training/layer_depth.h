// The depth of weights, for layer-wise decay of the learning rate: which layer each belongs to, counted from the input.
// Pure functions on a graph that must not change meanwhile; they throw nothing of their own.
//
// A layer is a module of the names that weights have: up to the first part that is a number ("blocks.3" of
// "blocks.3.attn.q.weight"), else all but the last part ("fc1"). In a file whose names have no parts, each matrix,
// filter and table is one. A layer is one deeper than the deepest result that its first reader reads, so branches count
// as they run. Where there are numbered layers, all that is before them is one layer, and all that is after them, as in
// timm and BEiT: embeddings are layer 0, block i is layer i + 1, the last norm and the head are the last layer.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct LayerDepths {
  std::vector<std::string> layers;  // by depth; the names of modules, joined by commas
  std::unordered_map<const Value*, size_t> of;

  // decay^(number of layers after the weight's).
  double rate(const Value* weight, double decay) const;
};

// Of all weights in the graph that layers read, and of those in `weights`.
LayerDepths layer_depths(const Graph& graph, const std::vector<Value*>& weights);

}  // namespace onnx_train
