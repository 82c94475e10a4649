// A dense tensor seen as [outer, size, inner] around one of its axes. A plain value.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {

struct AxisView {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;

  // `axis` may be negative. Throws Error when it is out of range.
  AxisView(const Shape& shape, int64_t axis) {
    const auto at = static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(shape.size())));
    for (size_t k = 0; k < shape.size(); ++k) (k < at ? outer : k == at ? size : inner) *= shape[k];
  }
  ONNX_TRAIN_HD int64_t lines() const { return outer * inner; }
  // Offset of the first element of line i; consecutive elements of a line are `inner` apart.
  ONNX_TRAIN_HD int64_t line(int64_t i) const { return i / inner * size * inner + i % inner; }
};

}  // namespace onnx_train
