// options.json of a run folder: every option by its long name with the value that the run used, given or not, and what
// the run derived from model, data and machine. A pure function; any thread.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/subcommand.h"

namespace onnx_train {

// A JSON object: the options, null where one has no value, and `derived` under that key.
std::string options_to_json(const std::vector<CommandOption>& options, const nlohmann::ordered_json& derived);

}  // namespace onnx_train
