// What is worth knowing of a forward model before it is trained: traces that exporters leave, which no checker finds.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct Finding {
  std::string subject;  // a weight, a node, an operator
  std::string what;     // what was found
  std::string advice;   // what it means for training, or what to do
};

// Findings on an imported model, in the order: unknown operators, non-finite weights, statistics of batch norm that
// are other weights, weights that were merged, copied or stored expanded. Reads every weight once.
std::vector<Finding> inspect(const Model& model);

// Why an operator of another domain is not known, and what to do about it.
std::string unknown_operator_advice(const Node& node);

}  // namespace onnx_train
