// What a training is told, by the command, C, C++ and Python alike. Plain values; one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/data/data_options.h"
#include "runtime/training/schedule.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

struct FitSettings {
  TrainerOptions trainer;
  ScheduleSettings schedule;
  DataOptions reading;
  std::optional<int64_t> batch_size;
  bool find_batch = false;               // the batch size is "auto": batch_search.h
  std::string time_limit, memory_limit;  // "15m", "2GiB"
  bool no_shuffle = false, no_data_check = false, resume = false, overwrite = false;
  std::shared_ptr<std::set<std::string>> given = std::make_shared<std::set<std::string>>();  // keys of options

  std::string last_checkpoint() const { return trainer.folder + "/last.onnx"; }
};

}  // namespace onnx_train
