// Reads command lines by the options of a subcommand: `--name VALUE`, `--name=VALUE`, `-n VALUE`, flags, arguments by
// position, `--` before arguments that start with a dash. Every value is checked as it is read, so that nothing has
// happened yet when one is wrong. Stateless but for the targets of the options; one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "tools/subcommand.h"

namespace onnx_train {

// Reads the arguments after the subcommand's name, then the file of --config, whose options the arguments override.
// Returns false when they ask for help. Throws UsageError for an option that is unknown (with those that are spelled
// much like it), given twice, without its value, or missing, and for an --output that is one of the files to read.
bool read_arguments(const Subcommand& subcommand, const std::vector<std::string>& arguments);

}  // namespace onnx_train
