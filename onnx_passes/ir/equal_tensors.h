// Whether tensors are the same, by their bytes. A pure function; any thread.
#pragma once

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Whether both have one type, one shape and the same bytes: 0 and -0 differ, equal NaNs do not. Tensors that are stored
// in fewer bits, both in the same way, are compared as they are stored.
bool are_same(const Tensor& a, const Tensor& b);

}  // namespace onnx_train
