// 16-bit floats as storage types: float in, float out, rounded to nearest even. BFloat16 is constexpr: device code
// converts it, too.
#pragma once

#include <bit>
#include <cstdint>

#include "onnx_passes/ir/types.h"

namespace onnx_train {

struct BFloat16 {
  uint16_t bits = 0;
  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    // A NaN keeps its top bits and stays a NaN; everything else rounds to nearest even.
    bits = value != value ? static_cast<uint16_t>((u >> 16) | 0x40)
                          : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  template <typename T>
  constexpr explicit operator T() const {
    return static_cast<T>(static_cast<float>(*this));
  }
};

struct Float16 {
  _Float16 value = 0;
  Float16() = default;
  template <typename T>
  explicit Float16(T v) : value(static_cast<_Float16>(v)) {}
  template <typename T>
  explicit operator T() const {
    return static_cast<T>(value);
  }
};

static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<Float16>() {
  return DType::kFloat16;
}

}  // namespace onnx_train
