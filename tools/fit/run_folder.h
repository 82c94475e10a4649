// The folder of a run, but for its checkpoints and metrics: making it, and what options.json keeps besides the options.
// Stateless; one process at a time works in a folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/session.h"
#include "runtime/training/batch_search.h"
#include "runtime/training/rate_search.h"
#include "runtime/training/trainer.h"
#include "tools/report/banner.h"

namespace onnx_train {

// Makes the folder, and clears what a killed process was writing there. Throws Error.
void prepare_folder(const std::string& folder);

// What a run found out itself before its first step.
struct Found {
  std::optional<FoundBatch> batch;
  std::optional<FoundRate> rate;
  int64_t bad_pictures = 0;  // that were left out
};

// What model, data and machine add to the options. `checked` are the fingerprints of data that has been checked.
nlohmann::ordered_json derived_options(const Session& session, const Trainer& trainer,
                                       const std::vector<std::string>& checked, const MemoryRows& memory,
                                       const Found& found);

// The fingerprints that the folder's options.json holds of checked data; none where it cannot be read.
std::vector<std::string> checked_data(const std::string& folder);

}  // namespace onnx_train
