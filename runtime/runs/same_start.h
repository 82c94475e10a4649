// What ranks compare before they train.
#pragma once

#include "runtime/session/session.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

// Throws Error where the session's ranks do not begin with the same state, data and settings.
// All ranks call it; does nothing for one.
void expect_same_start(const Session& session, const Trainer& trainer);

}  // namespace onnx_train
