// What a terminal shows of a run while it trains: where it stands, its curves, and what has been said. A pure function;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "tools/run_report/run_files.h"

namespace onnx_train {

struct DashboardSettings {
  std::string metric = "loss";        // of the large chart: a column of metrics.csv, with what evaluations say of it
  std::string state;                  // "running"
  std::string keys;                   // what keys do
  std::vector<std::string> messages;  // the last ones are shown
  double peak_memory = 0;             // of the process, in bytes; 0: not known
  bool colour = false;
};

// At most `rows` lines of at most `columns` columns.
std::vector<std::string> dashboard(const RunFiles& run, const DashboardSettings& settings, size_t columns, size_t rows);

}  // namespace onnx_train
