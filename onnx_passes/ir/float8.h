// Floats of 8 bits: values within a plan may have these types; a Tensor has no elements of them.
#pragma once

#include "onnx_passes/ir/types.h"

namespace onnx_train {

inline bool is_8_bit_float(DType dtype) { return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2; }

}  // namespace onnx_train
