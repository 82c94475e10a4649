// The options that every subcommand which runs a model has in common.
#pragma once

#include <string>
#include <vector>

#include "runtime/session.h"
#include "tools/subcommand.h"

namespace onnx_train {

struct RuntimeOptions {
  int64_t threads = 0;
  std::string lowering;  // "-fold_transposes,-fuse_elementwise"
  bool no_lowering = false;
  std::string dump_folder;
  std::string memory;  // "500MB"
  bool check_memory = false;
};

// `options` with those of `runtime` behind them.
std::vector<CommandOption> with_runtime_options(std::vector<CommandOption> options, RuntimeOptions* runtime);

// --dtype of the subcommands that compute without training.
CommandOption dtype_option(std::string* dtype);

// What a session is to be opened with. Sets the number of threads.
SessionOptions session_options(const RuntimeOptions& runtime);

}  // namespace onnx_train
