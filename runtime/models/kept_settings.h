// What a training model that is built anew keeps of the training model that it is built from. A pure function; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/model/analysis.h"
#include "runtime/models/build_settings.h"

namespace onnx_train {

// `settings` has an empty loss, and no metrics, where the user gave none. Where the outputs stay (no cut, no join) and
// `model` is a training model, these become its own; otherwise the loss stays empty. Metrics are kept with the loss.
// Returns what to say of it, a line for each. Throws Error if the loss is not one that can be built again: a
// model in a file that is gone, or one that reads a teacher that is not given.
std::vector<std::string> keep_settings(const onnx::ModelProto& model, BuildSettings* settings);

// Keeps the settings of the model, and imports it with them (build_settings.h). A loss that is still open becomes
// default_loss (onnx_passes/loss/probabilities.h). `kept`: what to say of settings; `findings`: of the model.
Model import_to_build(ModelMessage message, BuildSettings* settings, std::vector<std::string>* kept,
                      std::vector<Finding>* findings);
// The same of a file.
Model load_to_build(const std::string& path, BuildSettings* settings, std::vector<std::string>* kept,
                    std::vector<Finding>* findings);

// The loss of a training model as it was built; "" for a model that is none.
std::string loss_of(const onnx::ModelProto& model);

}  // namespace onnx_train
