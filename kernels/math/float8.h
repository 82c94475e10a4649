// Rounding to floats of 8 bits, the formula of FakeQuantize. Stateless; host and device code share it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// The largest power of two that is not above the positive `x`; 0 for subnormal x.
ONNX_TRAIN_HD inline float power_of_two_below(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000u);
}
ONNX_TRAIN_HD inline double power_of_two_below(double x) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & (uint64_t{0x7ff} << 52));
}

// A type of floats: bits of its fraction, its least normal number and its largest one.
struct Float8E4M3FN {
  static constexpr int kFractions = 8;  // between a power of two and the next
  static constexpr double kLeastNormal = 1.0 / 64, kLargest = 448;
};
struct Float8E5M2 {
  static constexpr int kFractions = 4;
  static constexpr double kLeastNormal = 1.0 / 16384, kLargest = 57344;
};

// x / scale, rounded to the nearest number of the type, ties to even, and times scale again. What is too large becomes
// the largest number; NaN stays NaN. `scale` is a power of two, so that division and product are exact.
template <typename Type>
struct FakeQuantize {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x, T scale) const {
    constexpr T kLargest = static_cast<T>(Type::kLargest), kLeastNormal = static_cast<T>(Type::kLeastNormal);
    const T scaled = x / scale, magnitude = std::fabs(scaled);
    if (!(magnitude < kLargest)) return magnitude != magnitude ? x : std::copysign(kLargest, x) * scale;
    const T power = magnitude < kLeastNormal ? kLeastNormal : power_of_two_below(magnitude);
    const T step = power / static_cast<T>(Type::kFractions);
    return std::rint(scaled / step) * step * scale;
  }
};

}  // namespace onnx_train::math
