// What a training model was built with for the inputs of its optimizer. Pure functions; any thread.
#pragma once

#include <optional>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The value that an input of the optimizer has unless it is given, as a decimal number that was written: 0.001 rather
// than 0.0010000000474974513. `role` is roles::kLearningRate or roles::kClipNorm.
std::optional<double> built_control(const Model& model, const char* role);

// The learning rate, or 0.001 where the model has none.
double built_rate(const Model& model);

}  // namespace onnx_train
