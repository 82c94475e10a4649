// What `fit` is told: its options, and the checks that need no file. Plain values; one thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/models/build_settings.h"
#include "runtime/runs/fit_settings.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {

struct FitArguments : FitSettings {
  std::string model, config, dtype = "float32";
  bool json = false, elastic = false, dry_run = false, tensorboard = false, tui = false;
  BuildSettings build;                   // of a forward model
  bool has_recorded_build = false;       // `build` has what options.json of a run says, and its loss is not guessed
  std::string devices;                   // of processes that share out the batches of a step
  std::string transport = "auto";        // of what they exchange
  std::vector<CommandOption> described;  // to write the resolved options
};

// The options, in the order of the help. They write into `arguments`, which must outlive them.
std::vector<CommandOption> fit_options(FitArguments* arguments);

// Completes `arguments` from the texts among them. Throws UsageError for options that do not go together.
void check_usage(FitArguments* arguments);

// What options.json has: of a run of a training model no options of `build`, which are for forward models.
std::vector<CommandOption> recorded_options(const FitArguments& arguments, bool is_built);

// The options of `build` that are given, by name and value: "--loss mse".
std::string given_build_options(const FitArguments& arguments);

}  // namespace onnx_train
