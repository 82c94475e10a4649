// Options from a file: a JSON object, or a YAML mapping, from an option's name to its value, flag or list. Names are
// those of the command line without dashes in front; `_` may stand for `-`. null, and `derived` of a run's
// options.json, say nothing. Stateless; one thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/support/options.h"

namespace onnx_train {

// --config.
CommandOption config_option(std::string* path);

// Whether `name`, as a file writes it, is this option's: "batch_size" and "model" are --batch-size and MODEL.
bool names_option(const CommandOption& option, std::string name);

// Sets those of `options` that the file has and `given` has not, and adds their keys to `given`. Throws UsageError that
// names the file and the option, and Error for a file that cannot be read.
void read_config(const std::string& path, const std::vector<CommandOption>& options, std::set<std::string>* given);

}  // namespace onnx_train
