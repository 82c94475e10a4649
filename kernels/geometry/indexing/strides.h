// Strides of dense tensors. Any thread.
#pragma once

#include "onnx_passes/ir/types.h"

namespace onnx_train {

// Distance in elements between neighbours along each axis of a row-major tensor.
inline Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace onnx_train
