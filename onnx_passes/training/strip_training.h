// Inference alone, of a training model. Pure function; any thread.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// The inference model: without training_info, functions and state used only in training, and without our functions,
// whose bodies are inlined. Of our metadata, what is done to data before the network reads them stays (kPreprocess:
// runtime/data/preprocess.h).
Model strip_training(const Model& model);

}  // namespace onnx_train
