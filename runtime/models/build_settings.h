// The settings that a training model is built with, named like the command's options: one table for the command and for
// programs that call the library. Plain values; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/passes.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct ModelMessage;
struct Finding;

struct BuildSettings {
  ImportOptions import;
  BuildOptions build;
  std::string dtype = "float32";  // of all float tensors: float32 or float64
  std::string teacher;            // a file; "" for none
  std::string device = "cpu";     // that `precision` = "auto" is for
  std::string mode = "train", precision = "float32", variance = "unbiased", accumulate_mean = "all";
};

// How the forward model is imported and adapted: `settings.import`, with the seed of new heads and adapters.
ImportOptions import_options(const BuildSettings& settings);

// The options of BuildSettings. They write into `settings`, which must outlive them.
std::vector<CommandOption> build_options(BuildSettings* settings);
// Some of them, for commands that take no others.
CommandOption mode_option(std::string* mode);
CommandOption batch_option(ImportOptions* options);
// Those of build_options that have these keys, described as options of a forward model.
std::vector<CommandOption> options_of_forward(BuildSettings* settings, const std::vector<std::string>& keys);
// Those with which a training builds most forward models first. The others are for `build`.
std::vector<CommandOption> options_of_forward_run(BuildSettings* settings);
CommandOption set_option(ImportOptions* options);
CommandOption dim_option(ImportOptions* options);
CommandOption fix_shapes_option(ImportOptions* options);

// What "auto" is: bf16 where the device multiplies bfloat16 faster than float32 (Device::bfloat16_units), else float32.
// Throws Error if there is no such device.
struct AutomaticPrecision {
  std::string kind;
  std::string why;  // "cpu has amx, which multiplies bfloat16"
};
AutomaticPrecision automatic_precision(const BuildSettings& settings);

// The options of `settings.build`, extended by `mode`, `precision`, `variance` and `accumulate_mean`, and by the loss
// model where `loss` is a file, and by the teacher. Throws Error for a precision that does not fit the dtype, and for a
// file that cannot be read.
BuildOptions resolve(const BuildSettings& settings);

// The loss model of a file, in precision `dtype`; null where `loss` is an expression.
std::shared_ptr<const LossModel> load_loss_model(const std::string& loss, const std::string& dtype);
// The teacher of a file, likewise, in inference form; null for "".
std::shared_ptr<const LossModel> load_teacher(const std::string& path, const std::string& dtype);
// The same of a message. `name` is for messages and metadata.
std::shared_ptr<const LossModel> import_loss_model(ModelMessage message, const std::string& name,
                                                   const std::string& dtype);

// Converts every float tensor of the model to float64 if `dtype` is float64.
Model in_precision(Model model, const std::string& dtype);
// Imports a forward model into the form that the passes expect, and adapts it (adapt.h). With `pipeline.dump_dir` the
// steps of both are dumped into the folders import and adapt there. Throws Error with the reason if that is impossible.
Model import_forward_model(ModelMessage message, const std::string& dtype, const ImportOptions& options,
                           std::vector<Finding>* findings = nullptr, const PipelineOptions& pipeline = {});
// The same from a file. Adds the findings of the import to `findings` unless that is null.
Model load_forward_model(const std::string& path, const std::string& dtype = "float32",
                         const ImportOptions& options = {}, std::vector<Finding>* findings = nullptr);

}  // namespace onnx_train
