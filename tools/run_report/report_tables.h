// The parts of a report that are text: its figures and tables, as HTML. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "tools/report/html_text.h"
#include "tools/run_report/run_files.h"

namespace onnx_train {

// Seconds by step, from the times of the steps.
Series elapsed(const RunFiles& run);

// The names of the runs; their number where that is too long.
std::string page_title(const std::vector<RunFiles>& runs);
// What comes before the charts: the state, notes and figures of one run, or a table of several.
std::string summary(const std::vector<RunFiles>& runs);
// What comes after them: classes, evaluations, memory, slowest nodes, options.
std::string tables(const std::vector<RunFiles>& runs);

}  // namespace onnx_train
