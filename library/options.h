// The options of the C interface: those of the common tables that a program gives.
#pragma once

#include <vector>

#include "runtime/runs/fit_settings.h"

namespace onnx_train {

// Of onnx_train_fit and of onnx_train_session_create. They write into `settings`, which must outlive them.
std::vector<CommandOption> options_of_fit(FitSettings* settings);
std::vector<CommandOption> options_of_session(SessionSettings* settings);

}  // namespace onnx_train
