// Selection between two rows of elements, the inner loop of Where. Elements are only copied, so it depends on their
// size alone. The condition is read as bytes: GCC 12 does not vectorize a selection by bool. A pure function; any
// thread.
#pragma once

#include <cstdint>

#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {

template <bool kCondition, bool kA, bool kB, typename T>
void choose(int64_t n, const uint8_t* condition, const T* a, const T* b, T* y) {
  vectorized([=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T yes = a[kA ? i : 0], no = b[kB ? i : 0];
      y[i] = condition[kCondition ? i : 0] != 0 ? yes : no;
    }
  });
}

template <typename T>
using Choose = void (*)(int64_t, const uint8_t*, const T*, const T*, T*);

template <typename T>
Choose<T> select_choose(bool condition_moves, bool a_moves, bool b_moves) {
  static constexpr Choose<T> kVariants[] = {
      choose<false, false, false, T>, choose<false, false, true, T>, choose<false, true, false, T>,
      choose<false, true, true, T>,   choose<true, false, false, T>, choose<true, false, true, T>,
      choose<true, true, false, T>,   choose<true, true, true, T>,
  };
  return kVariants[condition_moves * 4 + a_moves * 2 + b_moves];
}

}  // namespace onnx_train::cpu
