// All passes by name, of all pipelines: import (import.h), adapt (runtime/models/adapt.h), training
// (training_passes.cc), entry (runtime/plan/entry_passes.h) and lowering (kernels/lowering/pipeline.cc). A name is one
// pass; where a pipeline runs a pass twice, it has one row here. Plain values; one thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/pipeline/pass_rows.h"
#include "runtime/models/build_settings.h"

namespace onnx_train {

// Which passes run, and the options that they are made with: those of `build`.
struct PassSettings {
  std::vector<std::string> passes;
  BuildSettings build;
  std::string entry = name_of(Entry::kStep);  // of the pass flatten
};

struct RegisteredPass {
  std::string pipeline;
  PassRow row;
};

// Every pass, in the order of the pipelines. The passes of lowering are those of `settings.build.device`. Throws Error
// as `build` does for options that contradict each other.
std::vector<RegisteredPass> all_passes(const PassSettings& settings);
std::vector<std::string> pass_names();

// The options --passes, --entry and those of `build`. They write into `settings`, which must outlive them.
std::vector<CommandOption> pass_options(PassSettings* settings);

// Sets the options that comments in front of a model's text name, one in a line: "# passes: training_mode,loss",
// "# loss: mse". Throws UsageError for another name or value.
void read_header(const std::string& text, const std::vector<CommandOption>& options);

// Checks the model's nodes and infers its types, unless import does, and runs the passes of `settings` in their order.
// Throws UsageError for an unknown name, and for a pass that needs an option which is not given; Error for a node that
// its schema does not allow.
void run_passes(Model* model, const PassSettings& settings);

}  // namespace onnx_train
