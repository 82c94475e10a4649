// One axis of a box of elements: its size, and its strides in several layouts, in elements.
#pragma once

#include <cstdint>

namespace onnx_train::cuda {

template <int kLayouts>
struct IndexedAxis {
  int64_t size;
  int64_t strides[kLayouts];
};

}  // namespace onnx_train::cuda
