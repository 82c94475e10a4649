// The inputs of a plan: the first passes give them their sizes. The passes run on the thread that builds the plan, and
// throw Error that names the input.
#pragma once

#include <map>
#include <string>
#include <unordered_set>

#include "onnx_passes/import/sizes.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// What a plan is made for.
struct PlanInputs {
  std::unordered_set<std::string> states;
  std::map<std::string, Shape> shapes;  // of all other inputs that are given
  Sizes sizes = {};                     // of the symbols in the declared shapes, which set_shapes finds
};

// Makes inputs that the caller does not provide constants with their default values; states remain inputs.
bool fix_defaults(Model& model, const PlanInputs& inputs);

// Sets the concrete shapes of the graph's inputs and clears all types that were derived from symbols. Throws Error of
// the code kData for an input whose shape is not given, or is not what the model takes.
bool set_shapes(Model& model, PlanInputs* inputs);

}  // namespace onnx_train
