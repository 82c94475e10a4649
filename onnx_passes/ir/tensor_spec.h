// What is known of a tensor without its memory: of rows that are read later, of shapes that are planned. A plain value.
#pragma once

#include "onnx_passes/ir/types.h"

namespace onnx_train {

struct TensorSpec {
  DType dtype = DType::kUndefined;
  Shape shape;

  bool operator==(const TensorSpec&) const = default;
};

}  // namespace onnx_train
