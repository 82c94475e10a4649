// Copies of large constants in a form that kernels read: at an aligned address, or in another type. Any thread.
#pragma once

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Returns the numbers of `source` as `dtype`, rounded to nearest, at an address that is aligned to kAlignment. Callers
// of one process that ask for the same copy share it while one of them keeps it. The function releases the pages of a
// mapped file after it has read them.
Tensor shared_copy(const Tensor& source, DType dtype);

}  // namespace onnx_train
