// What a training model is built with, by the names of the command's options: one table for the command and for
// programs that call the library. Plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/passes/passes.h"
#include "runtime/options.h"

namespace onnx_train {

struct ModelMessage;
struct Finding;

struct BuildSettings {
  ImportOptions import;
  BuildOptions build;
  std::string dtype = "float32";  // of all floats: float32 or float64
  std::string mode = "train", precision = "float32", variance = "unbiased";
};

// The options of BuildSettings; they write into `settings`, which outlives them.
std::vector<CommandOption> build_options(BuildSettings* settings);
// Those of `import` alone, one by one.
CommandOption batch_option(ImportOptions* options);
CommandOption set_option(ImportOptions* options);
CommandOption fix_shapes_option(ImportOptions* options);

// The options of `settings.build`, with what `mode`, `precision` and `variance` say. Throws Error for a precision that
// does not go with the type.
BuildOptions resolve(const BuildSettings& settings);

// The model with float64 in place of every float when `dtype` is float64.
Model in_precision(Model model, const std::string& dtype);
// A forward model as the passes want it. Throws Error with the reason when it cannot be imported.
Model import_forward_model(ModelMessage message, const std::string& dtype, const ImportOptions& options,
                           std::vector<Finding>* findings = nullptr);

}  // namespace onnx_train
