// Trained weights back into a file that people have: `export --into`. Functions on values; any thread. They throw Error
// that names the file and the tensor.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/adapt/put_weights.h"
#include "runtime/models/inference_export.h"

namespace onnx_train {

// The weights of a training model before and after training, adapters merged where the settings say so. The values
// before training are those of frozen weights, which the training model holds, and those of the model at `base` for
// all others, by name.
std::vector<TrainedWeight> trained_weights(const Model& training, const ExportSettings& settings,
                                           const std::string& name, const std::string& base);

struct IntoExport {
  ModelMessage message;
  PutWeights put;
  std::vector<std::string> inputs;  // that adapters are now
};

// The model of the file settings.into (model_folder.h) with trained weights in the place of its own, or with inputs for
// adapters beside them (serve_adapters.h). Throws Error where
// one of them is not found there, or none has changed. `name` is the training model's, for messages.
IntoExport export_into(const Model& training, const ExportSettings& settings, const std::string& name);

// What was written: a plain value.
struct WrittenInto {
  PutWeights put;
  std::vector<std::string> inputs;  // that adapters are now
  std::string decoder;              // of a folder: the path there of the model that has all weights
  std::vector<std::string> notes;   // of other models of a folder
};

// The same in words: what was written, then what was guessed or left out, a line each.
std::vector<std::string> lines_of(const WrittenInto& written, const std::string& output);

// Writes that model to `output`, with its large tensors beside it if those of settings.into are. If that is a folder,
// writes the folder `output` like it, with trained weights in all models that hold some. Throws Error before anything
// is written where weights are not found.
WrittenInto write_into(const Model& training, const ExportSettings& settings, const std::string& name,
                       const std::string& output);

}  // namespace onnx_train
