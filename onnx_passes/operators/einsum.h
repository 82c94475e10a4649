// The explicit equation of an Einsum node: one letter for each axis of each input and of the output. Plain values; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct Einsum {
  std::vector<std::string> inputs;
  std::string output;

  std::string equation() const;  // "ij,jk->ik"
};

// Replaces an ellipsis by unused letters and makes an implicit output explicit. The ranks of all inputs must be known.
// Throws Error if the equation is invalid or does not fit the inputs.
Einsum parse_einsum(const Node& node);

}  // namespace onnx_train
