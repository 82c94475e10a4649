// Indices as kernels use them: int64, counted from the start, and inside the tensor. Reading them checks all of them,
// so a kernel that does it first writes nothing when one is wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train::cpu {

[[noreturn]] inline void fail_out_of_range(const std::string& node, int64_t index, int64_t size) {
  fail_as(ErrorCode::kData, node, ": index ", index, " is outside of an axis of size ", size, "; it must be in [",
          -size, ", ", size - 1, "]");
}

inline bool is_index_type(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

// Writes the n indices of type `dtype`, which lie within [-size, size), to `out`; throws Error that names the first
// one that does not.
inline void read_indices(const void* indices, DType dtype, int64_t n, int64_t size, const std::string& node,
                         int64_t* out) {
  const auto read = [&]<typename T>(const T* in) {
    int64_t wrong = n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = static_cast<int64_t>(in[i]);
      if (index < -size || index >= size) wrong = std::min(wrong, i);
      out[i] = index < 0 ? index + size : index;
    }
    if (wrong < n) fail_out_of_range(node, static_cast<int64_t>(in[wrong]), size);
  };
  dtype == DType::kInt64 ? read(static_cast<const int64_t*>(indices)) : read(static_cast<const int32_t*>(indices));
}

}  // namespace onnx_train::cpu
