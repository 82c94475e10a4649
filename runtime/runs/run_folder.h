// The folder of a run, but for its checkpoints and metrics: making it, and options.json, which has every option by its
// long name with the value that the run used, given or not, and what the run derived from model, data and machine.
// Stateless; one process at a time works in a folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/session/session.h"
#include "runtime/support/options.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/rate_search.h"
#include "runtime/training/run_memory.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

// Makes the folder, and clears what a killed process was writing there. Throws Error.
void prepare_folder(const std::string& folder);

// What a run found out itself before its first step.
struct Found {
  std::optional<FoundBatch> batch;
  std::optional<FoundRate> rate;
  int64_t bad_pictures = 0;  // that were left out
};

// Writes options.json to the folder: `options`, null where one has no value, and under "derived" what model,
// data and machine add. `checked` are the fingerprints of data that has been checked. Throws Error.
void write_options(const std::string& folder, const std::vector<CommandOption>& options, const Session& session,
                   const Trainer& trainer, const std::vector<std::string>& checked, const MemoryRows& memory,
                   const Found& found);

// What the folder's options.json holds; an empty object where there is none, or it is damaged. Throws Error where the
// system cannot read it.
nlohmann::json options_of_run(const std::string& folder);
// The fingerprints of checked data in it.
std::vector<std::string> checked_data(const std::string& folder);

}  // namespace onnx_train
