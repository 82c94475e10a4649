// Conversion of float16 numbers by their bits, for compilers that have no such type. Stateless; host and device code
// share it.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

// The float16 number with these bits.
ONNX_TRAIN_HD constexpr float widen_float16(uint16_t bits) {
  // The exponent of a float32 is biased by 112 more. Multiplication does it for subnormal numbers, too.
  const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7fff) << 13) * 0x1p112f;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;  // infinity or NaN
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | sign);
}

// The bits of the float16 number nearest to `value`, ties to even.
ONNX_TRAIN_HD constexpr uint16_t narrow_to_float16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffff;
  constexpr uint32_t kLeastNormal = 0x38800000, kInfinity = 0x7f800000;
  uint32_t result = 0;
  if (magnitude > kInfinity) {
    result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520, which rounds to infinity
    result = 0x7c00;
  } else if (magnitude >= kLeastNormal) {
    result = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  } else {
    // The sum is between 1/2 and 1: its last bit is that of a subnormal float16, 2^-24.
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  }
  return static_cast<uint16_t>(result | sign);
}

}  // namespace onnx_train::math
