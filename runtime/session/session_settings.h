// What a session is told, by the command, C, C++ and Python alike: one table of options. Plain values; one thread at a
// time.
#pragma once

#include <string>
#include <vector>

#include "runtime/session/session.h"
#include "runtime/support/options.h"

namespace onnx_train {

struct SessionSettings {
  std::string device = "cpu";
  int64_t threads = 0;  // 0: all
  int64_t max_plans = 16;
  std::string lowering;  // "-fold_transposes,-fuse_elementwise"
  bool no_lowering = false;
  std::string memory;  // "500MB"; "": what there is
  bool tf32 = false, deterministic = true;
  std::string offload = "none";  // or "optimizer"
  std::string dump_folder;       // "": none
  bool check_memory = false, detect_anomaly = false, allow_non_finite = false;
  std::string tta;                         // "flip, shift(1)"
  uint64_t seed = 0;                       // SessionOptions::seed
  std::string ranks;                       // "environment"; "": this process alone
  int64_t zero = 0, pipeline = 1;          // stages of Sharding, and of the model
  int64_t tensor_parallel = 1;             // ranks that compute products together
  std::string reduction = "auto";          // "exact", "fast"
  std::string reduction_type = "float32";  // "bf16"
  bool sync_batch_norm = false;
};

// The options that every session has. They write into `settings`, which must outlive them; so do those below.
std::vector<CommandOption> session_options(SessionSettings* settings);
// Those of several ranks, which train.
std::vector<CommandOption> rank_options(SessionSettings* settings);
// Throws UsageError for what --tta does not take.
void check_views(const std::string& text);
// --tta and --seed of sessions that evaluate or predict.
CommandOption tta_option(SessionSettings* settings);
CommandOption seed_option(SessionSettings* settings);
// --device alone.
CommandOption device_option(std::string* device);

// What ranks share out.
TopologyOptions topology_of(const SessionSettings& settings);
// What a session takes. Loads the device. Throws Error where there is no such device. The ranks are connected by the
// caller.
SessionOptions resolve(const SessionSettings& settings);

}  // namespace onnx_train
