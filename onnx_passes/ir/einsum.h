// The equation of an Einsum node, written out: one letter for each axis of each input and of the output.
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

// An ellipsis becomes letters that the equation does not use, an implicit output is made explicit. The ranks of all
// inputs must be known. Throws Error for an equation that is none or does not fit the inputs.
Einsum parse_einsum(const Node& node);

}  // namespace onnx_train
