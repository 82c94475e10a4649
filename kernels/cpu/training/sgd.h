// Sgd without momentum over a range of one tensor. Dense and sparse updates share this formula, so their bits are
// equal. A pure function; any thread may call it on its own range.
#pragma once

#include <cstdint>

#include "kernels/math/updates.h"

namespace onnx_train::cpu {

// next_w may be w: no restrict, but every element is read before it is written.
template <typename T>
inline void sgd(int64_t n, const T* w, const T* g, T* next_w, const math::Sgd<T>& step) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) next_w[i] = step(w[i], g[i]);
}

}  // namespace onnx_train::cpu
