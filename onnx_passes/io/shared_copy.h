// Copies of large constants in a form that kernels read: at an aligned address, or in another type. Any thread.
#pragma once

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Whether the elements are at an address that is aligned to kAlignment.
bool is_aligned(const Tensor& tensor);

// Returns the numbers of a tensor as `dtype`, rounded to nearest, at an aligned address: those that are stored so
// already, or a copy. Callers of one process that ask for the same copy share it while one of them keeps it. The
// function releases the pages of a mapped file after it has copied them.
Tensor shared_copy(const Tensor& numbers, DType dtype);

}  // namespace onnx_train
