// The list of passes that make a training model.
#pragma once

#include <vector>

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

std::vector<Pass> training_passes(const BuildOptions& options);
// Takes import_model's result, returns a training model.
std::vector<PassTiming> build_training_model(Model* model, const BuildOptions& options);
// The same with the entry point "evaluate" alone: loss and metrics, of models without gradients, too.
void build_evaluation_model(Model* model, const BuildOptions& options);

}  // namespace onnx_train
