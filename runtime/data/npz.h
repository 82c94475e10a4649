// Writing .npz files, as numpy.savez does.
#pragma once

#include <string>

#include "runtime/session.h"

namespace onnx_train {

// Writes each tensor as the key of its name, atomically.
void write_npz(const std::string& path, const TensorMap& arrays);

}  // namespace onnx_train
