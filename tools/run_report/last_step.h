// The last step of a run as one line of text, from its files. A pure function; any thread.
#pragma once

#include <string>

#include "tools/run_report/run_files.h"

namespace onnx_train {

// "step 12/540  epoch 2  loss 0.31 ...", of at most `width` columns: what comes last is left out. 0: all of it.
std::string last_step_line(const RunFiles& run, size_t width);

}  // namespace onnx_train
