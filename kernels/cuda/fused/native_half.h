// What stands for onnx_passes/ir/types.h in generated kernels that NVRTC compiles: as much as onnx_passes/ir/half.h
// needs, and the compiler's float16, which Float16 holds and NVRTC has not.
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
