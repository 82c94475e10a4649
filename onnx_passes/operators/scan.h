// A Scan with explicit attributes. Among inputs and outputs, states precede scanned tensors. A view of the node, which
// must outlive it; the node fits its contract (check_shapes).
#pragma once

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct Scan {
  const Graph* body;
  int states, inputs, outputs;  // counts
  Shape input_axes, output_axes, input_backwards, output_backwards;

  explicit Scan(const Node& node);

  // The number of steps of `node`; -1 if it is not known.
  int64_t steps(const Node& node) const;
};

}  // namespace onnx_train
