// A model without weights to train. Pure function; any thread.
#pragma once

#include <string>

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

// Why select_trainable (model/select.h) gives nothing, in one sentence about the model `name`.
std::string nothing_to_train(const std::string& name, const Graph& graph, const BuildOptions& options);

}  // namespace onnx_train
