// Conversion of one element to another type, with the semantics of Cast. Stateless; host and device code share it.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/math/host_device.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::math {

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// Rounds to nearest even. CUDA's kernels have instructions for it (kernels/cuda/support/stored.h).
template <typename Half>
ONNX_TRAIN_HD inline Half rounded(float x) {
  return Half(x);
}

// Floats convert to integers by truncation; values out of range saturate and NaN gives 0 (ONNX defines neither).
// Integers wrap around, as in NumPy. 16-bit floats convert via float32.
template <typename To, typename From>
ONNX_TRAIN_HD inline To convert(From x) {
  if constexpr (kIsHalf<From>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (kIsHalf<To>) {
    return rounded<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    // One more than the largest integer, a power of two: the largest integer itself may not be representable as a
    // float.
    constexpr From kEnd = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * From{2};
    if (x >= kEnd) return std::numeric_limits<To>::max();
    if (x <= kLow) return std::numeric_limits<To>::min();
    return x != x ? To{0} : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename To>
struct Convert {
  template <typename From>
  ONNX_TRAIN_HD To operator()(From x) const {
    return convert<To>(x);
  }
};

// Rounds to nearest and clamps to the range of S; NaN gives 0 in integers.
template <typename S>
ONNX_TRAIN_HD inline S saturated(double x) {
  if constexpr (std::is_integral_v<S>) {
    constexpr auto lowest = static_cast<double>(std::numeric_limits<S>::min());
    constexpr auto highest = static_cast<double>(std::numeric_limits<S>::max());
    if (!(x > lowest)) return x == x ? std::numeric_limits<S>::min() : S{0};
    return x >= highest ? std::numeric_limits<S>::max() : static_cast<S>(std::nearbyint(x));
  } else {
    return static_cast<S>(static_cast<float>(x));
  }
}

}  // namespace onnx_train::math
