// The table of a model's parameters, by module where they are many. A pure function; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

// A tensor of the state that is a weight or a running statistic.
struct ParameterRow {
  std::string name;   // "encoder.layers.0.weight"
  std::string shape;  // "64 x 64"
  double elements;
  std::string dtype;
  std::string decay;  // "" for none
  std::string state;  // the optimizer's slots, or what else it is
};

// One row a parameter, of at most `width` columns (TextTable). More than 12 become totals of modules, which are what
// names have in common up to a '.' or '/': the largest are opened as long as there is room for their parts.
std::string parameter_table(const std::vector<ParameterRow>& parameters, size_t width);

}  // namespace onnx_train
