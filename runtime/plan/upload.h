// Copies the contents of initializers to memory from which kernels read them. Each block is read once; blocks of mapped
// files are then dropped from this process's memory. Any thread.
#pragma once

#include "kernels/device.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Copies the tensor's bytes to device memory of the same size.
void upload(const Tensor& contents, Stream* stream, void* to);

// Copies large initializers that are misaligned in the file, once for all plans.
void align_contents(Model* model);

}  // namespace onnx_train
