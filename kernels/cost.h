// What a node costs at the least, counted from the shapes of its inputs and outputs: the arithmetic of its products and
// convolutions, and the bytes it reads and writes. The one place that knows; reports and passes read it.
#pragma once

#include <map>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct NodeCost {
  // Two for each multiply-add of products and convolutions, by the element type of their operands. Other arithmetic is
  // not counted: memory bounds it.
  std::map<DType, double> flops;
  double bytes = 0;  // of inputs and outputs; 0 for a view

  double total_flops() const;
};

// Sizes that are not known count as 1. A call is what its body is; Scan and Loop with a known trip count are their body
// as often; of an If's branches the dearer one counts.
NodeCost cost_of(const Node& node);

}  // namespace onnx_train
