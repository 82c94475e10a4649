// The options that every subcommand which runs a model has in common.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/data_options.h"
#include "runtime/session/session_settings.h"
#include "tools/subcommand.h"

namespace onnx_train {

// Returns `options` followed, if given, by those of data, and by those of a session.
std::vector<CommandOption> with_session_options(std::vector<CommandOption> options, SessionSettings* settings,
                                                DataOptions* reading = nullptr, SampleOptions* samples = nullptr);

// --dtype of the subcommands that compute without training.
CommandOption dtype_option(std::string* dtype);

// --allow-links, which the command adds to every subcommand that does not pass it on itself.
CommandOption links_option(std::string* folder);

// --base-model, which the command adds to every subcommand.
CommandOption base_option(std::string* file);

// The names that an entry point may have, for shells to complete.
std::vector<std::string> entry_names();

// The options to open a session with. Loads the device and sets the number of threads. Throws Error when there is no
// such device. A loss that is not finite is what the subcommand makes of it.
SessionOptions options_of_session(const SessionSettings& settings);

}  // namespace onnx_train
