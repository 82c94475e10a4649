// What a forward model is, whether it can be trained, and everything that is in the way: the content of the command
// `check`, as data and as text. Plain values; a report owns nothing of the model. Any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/model/analysis.h"
#include "runtime/models/build_settings.h"
#include "runtime/models/trial.h"

namespace onnx_train {

struct CheckSettings {
  CheckSettings() { build.build.loss.clear(); }

  BuildSettings build;  // `loss`: empty for one that fits the first output
  std::string device = "cpu";
  std::vector<std::string> sizes;  // NAME=N for symbolic dimensions
};

// The options of CheckSettings. They write into `settings`, which must outlive them.
std::vector<CommandOption> check_options(CheckSettings* settings);

struct CheckReport {
  std::vector<std::pair<std::string, std::string>>
      facts;  // {"inputs", "x  float[batch,4]"}; "" continues the row above
  std::vector<Finding> findings;
  std::string loss;  // that the model was tried with
  std::vector<Hindrance> obstacles;
  std::string options;                       // of the `build` that makes it trainable, such as " --batch dynamic"
  std::string failure;                       // the one line that says why the model cannot be trained; empty if it can
  ErrorCode code = ErrorCode::kUnsupported;  // of the failure

  bool can_be_trained() const { return failure.empty(); }
};

// Imports the model and tries to train it. `name` is the model's in the report. Throws Error for a model that cannot be
// imported and for settings that do not fit it.
CheckReport check_model(ModelMessage message, const std::string& name, const CheckSettings& settings);
CheckReport check_model(const std::string& path, const CheckSettings& settings);  // of the name `path`

// "  subject: what; advice", a paragraph of at most `width` columns that ends in a newline; 0: one line.
std::string to_text(const std::string& subject, const std::string& what, const std::string& advice, size_t width);

// Everything but the failure, as the command prints it, wrapped likewise; the suggested command at `command_width`
// columns, with backslashes.
std::string to_text(const CheckReport& report, const std::string& name, size_t width, size_t command_width);

}  // namespace onnx_train
