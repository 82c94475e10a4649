// The best element of a line in an order without ties: elements are compared, then their indices. For kernels.
#pragma once

#include "kernels/cuda/support/gpu.h"
#include "kernels/geometry/indexing/scans.h"

namespace onnx_train::cuda {

// An element and its index; a negative index means none.
template <typename T>
struct Leader {
  T value;
  int64_t index;
};

// Whether a comes before b: the larger element or, without `largest`, the smaller. Among equal ones the first does or,
// with `last`, the last.
struct LeaderOrder {
  bool largest, last;

  template <typename T>
  __device__ bool operator()(const Leader<T>& a, const Leader<T>& b) const {
    if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
    if (comes_before(largest, a.value, b.value)) return true;
    if (comes_before(largest, b.value, a.value)) return false;
    return last ? a.index > b.index : a.index < b.index;
  }
  template <typename T>
  __device__ Leader<T> best(const Leader<T>& a, const Leader<T>& b) const {
    return (*this)(b, a) ? b : a;
  }
};

}  // namespace onnx_train::cuda
