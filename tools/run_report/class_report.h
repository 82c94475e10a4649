// The part of a report that is about classes: the table and the confusion matrix of the best evaluation, as HTML. A
// pure function; any thread.
#pragma once

#include <string>

#include "tools/run_report/run_files.h"

namespace onnx_train {

// "" for a run without such metrics. What cannot be read in evaluation.json is left out.
std::string class_tables(const RunFiles& run);

}  // namespace onnx_train
