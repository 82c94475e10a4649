// The subcommand `opt`. Plain values; one thread.
#pragma once

#include "tools/subcommand.h"

namespace onnx_train {

Subcommand opt_command();

}  // namespace onnx_train
