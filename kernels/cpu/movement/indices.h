// Indices as the kernels use them: int64, non-negative, and checked against the size of the axis. A kernel reads all
// indices before it writes anything and returns if one is out of range. Any thread may call these functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/indexing/indexing.h"

namespace onnx_train::cpu {

// Writes the n indices of an input of type `dtype`, each in [-size, size), to `out` as non-negative int64. Reports the
// first index that is out of range and returns false.
inline bool read_indices(const Launch& launch, int input, DType dtype, int64_t n, int64_t size, int64_t* out) {
  const auto read = [&]<typename T>(const T* in) {
    int64_t wrong = n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = static_cast<int64_t>(in[i]);
      if (index < -size || index >= size) wrong = std::min(wrong, i);
      out[i] = index < 0 ? index + size : index;
    }
    if (wrong < n) launch.report(input, wrong, static_cast<int64_t>(in[wrong]));
    return wrong == n;
  };
  return dtype == DType::kInt64 ? read(launch.in<int64_t>(input)) : read(launch.in<int32_t>(input));
}

}  // namespace onnx_train::cpu
