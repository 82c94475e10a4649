// What `fit --dry-run` does in the place of training. One thread.
#pragma once

#include <string>

#include "runtime/training/trainer.h"

namespace onnx_train {

// Takes a few steps with a trainer that has no folder, and says what they tell of the whole training: one line, or one
// JSON object. The state of the session has changed then; nobody keeps it. Throws what a step throws.
std::string rehearse(Trainer* trainer, bool json);

// Throws Error if the folder, or the one in which it would be made, cannot be written.
void check_writable(const std::string& folder);

}  // namespace onnx_train
