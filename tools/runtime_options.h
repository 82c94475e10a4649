// The options that every subcommand which runs a model has in common.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/data_options.h"
#include "runtime/session.h"
#include "tools/subcommand.h"

namespace onnx_train {

struct RuntimeOptions {
  std::string device = "cpu";
  int64_t threads = 0;
  std::string lowering;  // "-fold_transposes,-fuse_elementwise"
  bool no_lowering = false;
  std::string dump_folder;
  std::string memory;  // "500MB"
  bool tf32 = false;
  std::string deterministic = "on";  // or "off"
  std::string offload = "none";
  bool check_memory = false, detect_anomaly = false;
  std::string tta;    // "flip, shift(1)"
  uint64_t seed = 0;  // SessionOptions::seed
};

// Returns `options` followed by the options that set `runtime` and, if given, by those of data.
std::vector<CommandOption> with_runtime_options(std::vector<CommandOption> options, RuntimeOptions* runtime,
                                                DataOptions* reading = nullptr, SampleOptions* samples = nullptr);

// --dtype of the subcommands that compute without training.
CommandOption dtype_option(std::string* dtype);

// --scale and --preprocess of the subcommands that read data.
CommandOption scale_option(std::vector<std::string>* scales);
CommandOption preprocess_option(std::string* steps);

// --allow-links, which the command adds to every subcommand that does not pass it on itself.
CommandOption links_option(std::string* folder);

// --tta of the subcommands that evaluate or predict.
CommandOption tta_option(RuntimeOptions* runtime);

// --seed of the same.
CommandOption seed_option(RuntimeOptions* runtime);

// The names that an entry point may have, for shells to complete.
std::vector<std::string> entry_names();

// --device.
CommandOption device_option(std::string* device);

// The options to open a session with. Loads the device and sets the number of threads. Throws Error when there is no
// such device.
SessionOptions session_options(const RuntimeOptions& runtime);

}  // namespace onnx_train
