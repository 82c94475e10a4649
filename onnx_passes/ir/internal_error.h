// An Error that no file and no user can cause: a bug of ours. Where a pass throws it, the model before the pass is kept
// (kept_faults.h); programs get the status ONNX_TRAIN_INTERNAL. Plain values; any thread.
#pragma once

#include <string>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(message) {}
};

}  // namespace onnx_train
