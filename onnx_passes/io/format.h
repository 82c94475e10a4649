// The version of what our metadata mean. Training models, and so checkpoints and what runs keep, carry it as
// `onnx_train.version`; any other model has none and is left as it is. Pure functions; any thread.
#pragma once

#include <span>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

inline constexpr const char* kFormatKey = "onnx_train.version";
inline constexpr int kFormatVersion = 1;  // that this program writes, and the newest that it reads

// Rewrites a model of version `from` as one of the next version. Throws Error if it cannot.
struct Upgrade {
  int from;
  void (*run)(onnx::ModelProto* model);
};

// The steps to kFormatVersion, one for each version before it: none yet.
std::span<const Upgrade> upgrades();

// Runs the steps from the model's version to the newest one, and writes that into the model. Throws Error if the
// version is no number, if it is newer, or if no step leads from it.
void upgrade(onnx::ModelProto* model, std::span<const Upgrade> steps = upgrades(), int newest = kFormatVersion);

}  // namespace onnx_train
