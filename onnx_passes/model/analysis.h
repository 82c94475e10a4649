// Diagnosis of a forward model before training: traces of exporters that no checker finds. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct Finding {
  std::string subject;  // a weight, a node, an operator
  std::string what;     // what was found
  std::string advice;   // the consequence for training, or what to do
};

// Findings on an imported model, in this order: non-finite weights, batch-norm statistics that are other weights,
// weights that were merged, copied or stored expanded. Reads every weight once.
std::vector<Finding> inspect(const Model& model);

}  // namespace onnx_train
