// A dense tensor as [outer, size, inner] around one of its axes.
#pragma once

#include <cstdint>

#include "onnx_passes/ir/types.h"

namespace onnx_train::cpu {

struct AroundAxis {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;

  // `axis` may be negative; throws Error when it is outside the tensor.
  AroundAxis(const Shape& shape, int64_t axis) {
    const auto at = static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(shape.size())));
    for (size_t k = 0; k < shape.size(); ++k) (k < at ? outer : k == at ? size : inner) *= shape[k];
  }
  // Lines along the axis.
  int64_t lines() const { return outer * inner; }
  // Offset of the first element of a line; its elements are `inner` apart.
  int64_t line(int64_t i) const { return i / inner * size * inner + i % inner; }
};

}  // namespace onnx_train::cpu
