// Adapters in ONNX Runtime's format, which its LoraAdapter loads. A function on values; any thread.
#pragma once

#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Writes the values of a model's inputs by their names (serve_adapters.h), atomically. Throws Error that names the
// file, also for more than 2 GiB, which the format does not hold.
void write_onnxruntime_adapter(const std::string& path, const TensorMap& values);

}  // namespace onnx_train
