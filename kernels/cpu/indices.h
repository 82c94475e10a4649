// Indices as kernels use them: int64, counted from the start, and inside the tensor. A kernel reads them all first, and
// returns when one is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train::cpu {

inline bool is_index_type(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

inline std::string out_of_range(int64_t index, int64_t size) {
  return concat("index ", index, " is outside of an axis of size ", size, "; it must be in [", -size, ", ", size - 1,
                "]");
}

// Prepared::explain of kernels whose indices are all of one axis.
inline std::function<std::string(const Fault&)> explain_index(int64_t size) {
  return [size](const Fault& fault) { return out_of_range(fault.value, size); };
}

// Writes the n indices of an input, which are of type `dtype` and within [-size, size), to `out`; reports the first one
// that is not, and returns false.
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
