// What becomes of a model in training, found by doing it: `check` says what `build`, `fit` and `predict` do because it
// does the same, but for the steps themselves. Functions on a model that one caller owns.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

class Device;

// One thing in the way: a node or a part of the work, what is wrong, and what can be done.
struct Hindrance {
  std::string place, reason, way_out;
};

// A loss that fits the model's first float output: cross_entropy over classes, the output itself where it is one
// number, mse otherwise. Throws Error when no output is a float.
std::string suggest_loss(const Graph& graph);

// Turns the imported `model` into a training model with the passes of `build`, then makes the plans of `step` and
// `predict` on `device` with small sizes for symbolic dimensions; `sizes` sets them as NAME=N. Neither needs
// memory for values or state. Returns what was in the way: every node without a gradient, or else the first error;
// nothing when all went well.
std::vector<Hindrance> try_training(Model* model, const BuildOptions& options, const std::vector<std::string>& sizes,
                                    Device& device);

}  // namespace onnx_train
