// Copies of large constants in a form that kernels read: at an aligned address, or in another type. Any thread.
#pragma once

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// The numbers of `source` as `dtype`, rounded to nearest, at an address that is aligned to kAlignment. All of a process
// who ask for the same share one copy, for as long as one of them keeps it. Pages of a mapped file that have been read
// are released.
Tensor shared_copy(const Tensor& source, DType dtype);

}  // namespace onnx_train
