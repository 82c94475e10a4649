// The texts of --help, wrapped to the width of the terminal. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "tools/subcommand.h"

namespace onnx_train {

std::string help_text(const std::vector<Subcommand>& subcommands, size_t width);
std::string help_text(const Subcommand& subcommand, size_t width);

}  // namespace onnx_train
