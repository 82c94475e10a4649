// Layers that an export leaves out of the file: dropout in evaluation mode, batch norm that is folded into
// convolutions, and biases that are zeros. The inference graph of a training model has no dropout, either. A pure
// function; any thread.
#pragma once

#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/analysis.h"

namespace onnx_train {

// What a forward model has no trace of, though it may have had it: no file says so, hence "if".
std::vector<Finding> find_lost_layers(const Model& forward);

// Metadata of a model that was imported from a training model.
inline constexpr const char* kFromTraining = "onnx_train.from_training";

}  // namespace onnx_train
