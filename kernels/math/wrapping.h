// Arithmetic on integers that wraps around, where C++ leaves an overflow undefined.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// The type in which arithmetic on T happens: T itself for floats.
template <typename T>
using Wrapping = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<(sizeof(T) < sizeof(uint64_t)), uint32_t, uint64_t>>;

template <typename T>
ONNX_TRAIN_HD inline Wrapping<T> wrapping(T x) {
  return static_cast<Wrapping<T>>(x);
}

}  // namespace onnx_train::math
