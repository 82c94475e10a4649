// Contents of initializers on their way to where kernels read them. Each block is read once, and leaves this process's
// memory again when it comes from a mapped file. Any thread.
#pragma once

#include "kernels/device.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Copies the tensor's bytes to device memory of that size.
void upload(const Tensor& contents, Stream* stream, void* to);

// True for memory that kernels of the CPU read in place at full speed.
bool is_aligned(const Tensor& contents);

// Copies large initializers of the model's graphs that the file does not align; once, for all plans.
void align_contents(Model* model);

}  // namespace onnx_train
