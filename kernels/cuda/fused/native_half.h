// Replaces onnx_passes/ir/types.h in generated kernels that NVRTC compiles: declares what onnx_passes/ir/half.h needs,
// and a substitute for _Float16, which NVRTC lacks.
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
  NativeHalf(T value) : bits(math::narrow_to_float16(static_cast<float>(value))) {}
  template <typename T>
  explicit operator T() const {
    return static_cast<T>(math::widen_float16(bits));
  }
};

}  // namespace onnx_train

#define _Float16 NativeHalf
