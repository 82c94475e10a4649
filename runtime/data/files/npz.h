// Writes .npz files, as numpy.savez does (open_npz reads them). Functions may run on any thread, and throw Error that
// names the file.
#pragma once

#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Writes each tensor as the key of its name, atomically.
void write_npz(const std::string& path, const TensorMap& arrays);

}  // namespace onnx_train
