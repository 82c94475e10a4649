// A lower bound of a node's cost, from the shapes of its inputs and outputs: the arithmetic of products and
// convolutions, and the bytes read and written. Reports and passes share it. Pure functions; any thread; nothing
// throws.
#pragma once

#include <map>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct NodeCost {
  // Two per multiply-add of products and convolutions, by the element type of the operands. Other arithmetic is not
  // counted, because memory bounds it.
  std::map<DType, double> flops;
  double bytes = 0;  // of inputs and outputs; 0 for a view

  double total_flops() const;
};

// Unknown sizes count as 1. A call costs what its body costs; Scan and Loop with a known trip count cost their body
// times the count; If costs its more expensive branch.
NodeCost cost_of(const Node& node);

}  // namespace onnx_train
