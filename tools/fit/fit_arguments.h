// What `fit` is told: its options, and the checks that need no file. Plain values; one thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/build_settings.h"
#include "runtime/training/trainer.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {

struct FitArguments {
  std::string model, data, eval_data, time_limit, config, dtype = "float32", memory_limit;
  TrainerOptions trainer;
  bool no_shuffle = false, no_data_check = false, resume = false, overwrite = false, json = false;
  bool elastic = false;
  bool dry_run = false, tensorboard = false, tui = false, find_batch = false;
  RuntimeOptions runtime;
  DataOptions reading;
  ScheduleSettings schedule;
  BuildSettings build;  // of a forward model
  std::optional<int64_t> batch_size, seed;
  bool has_recorded_build = false;  // `build` has what options.json of a run says, and its loss is not guessed
  std::string devices;              // of processes that share out the batches of a step
  std::string transport = "auto";   // of what they exchange
  bool sync_batch_norm = false;
  int64_t pipeline = 1;                  // stages
  int64_t zero = 0;                      // stage of Sharding
  std::vector<CommandOption> described;  // to write the resolved options
  std::shared_ptr<std::set<std::string>> given = std::make_shared<std::set<std::string>>();

  std::string last_checkpoint() const { return trainer.folder + "/last.onnx"; }
};

// The options, in the order of the help. They write into `arguments`, which must outlive them.
std::vector<CommandOption> fit_options(FitArguments* arguments);

// Completes `arguments` from the texts among them. Throws UsageError for options that do not go together.
void check_usage(FitArguments* arguments);

// What options.json has: of a run of a training model no options of `build`, which are for forward models.
std::vector<CommandOption> recorded_options(const FitArguments& arguments, bool is_built);

// The options of `build` among them.
std::vector<CommandOption> build_options_of(FitArguments* arguments);
// Those that are given, by name and value: "--loss mse".
std::string given_build_options(const FitArguments& arguments);

}  // namespace onnx_train
