// Integer arithmetic that wraps around where C++ leaves overflow undefined. Pure functions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// The type in which arithmetic on T is done: unsigned for integers, T itself for floats.
template <typename T>
using Wrapping = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<(sizeof(T) < sizeof(uint64_t)), uint32_t, uint64_t>>;

template <typename T>
ONNX_TRAIN_HD inline Wrapping<T> wrapping(T x) {
  return static_cast<Wrapping<T>>(x);
}

}  // namespace onnx_train::math
