// Replaces onnx_passes/ir/types.h in generated kernels that NVRTC compiles: declares what onnx_passes/ir/half.h needs,
// and a substitute for _Float16, which NVRTC lacks. Conversions have the bits of the hardware's, which knows one NaN.
#pragma once

#include "kernels/math/float16.h"

namespace onnx_train {

enum class DType : int { kFloat16 = 10, kBFloat16 = 16 };
template <typename T>
constexpr DType dtype_of();

struct NativeHalf {
  uint16_t bits = 0;
  NativeHalf() = default;
  template <typename T>
  NativeHalf(T value) {
    const auto x = static_cast<float>(value);
    bits = x != x ? uint16_t{0x7fff} : math::narrow_to_float16(x);
  }
  template <typename T>
  explicit operator T() const {
    const float x = math::widen_float16(bits);
    return static_cast<T>(x != x ? std::bit_cast<float>(0x7fffffffu) : x);
  }
};

}  // namespace onnx_train

#define _Float16 NativeHalf
