// RUN/report.html: one file that shows a run, or compares several. It reads nothing from elsewhere, and holds no date,
// so that equal runs give equal pages. Any thread.
#pragma once

#include <string>
#include <vector>

#include "tools/run_report/run_files.h"

namespace onnx_train {

std::string report_page(const std::vector<RunFiles>& runs);

// Throws UsageError, which names the option that asks for a report, in a build without (CMake's ONNX_TRAIN_MINIMAL).
void expect_reports(const std::string& option);

// Reads the runs in `folders` and writes their page. Throws Error.
void write_report(const std::vector<std::string>& folders, const std::string& path);

}  // namespace onnx_train
