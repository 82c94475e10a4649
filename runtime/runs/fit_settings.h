// What a training is told, by the command, C, C++ and Python alike: one table of options, and what follows from them.
// Plain values; one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/data/data_options.h"
#include "runtime/session/session_settings.h"
#include "runtime/training/schedule.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

struct FitSettings {
  TrainerOptions trainer;
  ScheduleSettings schedule;
  DataOptions reading;
  SessionSettings session;      // of the session that trains
  std::string data, eval_data;  // the paths of files
  std::optional<int64_t> batch_size;
  bool find_batch = false;               // the batch size is "auto": batch_search.h
  std::string time_limit, memory_limit;  // "15m", "2GiB"
  std::optional<int64_t> seed;
  bool no_shuffle = false, no_data_check = false, resume = false, overwrite = false;
  std::shared_ptr<std::set<std::string>> given = std::make_shared<std::set<std::string>>();  // keys of options

  std::string last_checkpoint() const { return trainer.folder + "/last.onnx"; }
};

// The options of a training, in the order of the help: of data, the end, the step, the schedule, the run. They write
// into `settings`, which must outlive them. Those of data files, samples and the session are tables of their own
// (data_options.h, session_settings.h).
std::vector<CommandOption> training_options(FitSettings* settings);

// Completes the settings of the trainer from the texts among them. `built_rate` is the learning rate where none is
// given. Throws UsageError for options that do not go together.
void complete(FitSettings* settings, double built_rate);

}  // namespace onnx_train
