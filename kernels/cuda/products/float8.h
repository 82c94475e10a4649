// Conversion to 8-bit floats. For kernels; the host may call encoded(), too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/support/gpu.h"
#include "kernels/math/float8.h"

#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace onnx_train::cuda {

// The 8 bits of the number of the type (math/float8.h) that is nearest to x, ties to even. What is too large becomes
// the largest number; NaN becomes the type's NaN. FakeQuantize gives the same number, times its scale, for x / scale.
template <typename Type>
__host__ __device__ uint8_t encoded(float x) {
  constexpr int kFractionBits = 23;  // of float32
  constexpr uint8_t kNaN = 0x7f;
  const auto exponent_of = [](float power) { return std::bit_cast<uint32_t>(power) >> kFractionBits; };
  constexpr auto kLargest = static_cast<float>(Type::kLargest), kLeastNormal = static_cast<float>(Type::kLeastNormal);
  float magnitude = std::fabs(x);
  if (magnitude != magnitude) return kNaN;
  if (magnitude > kLargest) magnitude = kLargest;
  const float power = magnitude < kLeastNormal ? kLeastNormal : math::power_of_two_below(magnitude);
  // Of a normal number the leading 1 is not stored, and makes its exponent one more than that of subnormal numbers.
  const auto steps = static_cast<uint32_t>(std::rint(magnitude / (power / static_cast<float>(Type::kFractions))));
  const uint32_t code = (exponent_of(power) - exponent_of(kLeastNormal)) * Type::kFractions + steps;
  return static_cast<uint8_t>(code | (std::bit_cast<uint32_t>(x) >> 31 << 7));
}

// The number of which this is the code.
template <typename Type>
__host__ __device__ float decoded(uint8_t code) {
  const int magnitude = code & 0x7f, exponent = magnitude / Type::kFractions, fraction = magnitude % Type::kFractions;
  const bool is_nan = magnitude > encoded<Type>(static_cast<float>(Type::kLargest));
  const int steps = exponent == 0 ? fraction : Type::kFractions + fraction;
  const auto step = static_cast<float>(Type::kLeastNormal / Type::kFractions);
  const float value = std::ldexp(static_cast<float>(steps) * step, exponent == 0 ? 0 : exponent - 1);
  return is_nan ? NAN : code > 0x7f ? -value : value;
}

// The codes of two numbers; that of `first` is the lower byte. One instruction from compute capability 8.9 on.
template <typename Type>
__device__ uint32_t encoded_pair(float first, float second) {
#ifdef __CUDA_ARCH__
  constexpr auto kType = Type::kFractions == math::Float8E4M3FN::kFractions ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kType);
#else
  return encoded<Type>(first) | static_cast<uint32_t>(encoded<Type>(second)) << 8;
#endif
}

// The inverse: the numbers of two codes.
template <typename Type>
__device__ void decode_pair(uint32_t codes, float (&numbers)[2]) {
#ifdef __CUDA_ARCH__
  constexpr auto kType = Type::kFractions == math::Float8E4M3FN::kFractions ? __NV_E4M3 : __NV_E5M2;
  const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(codes), kType)));
  numbers[0] = pair.x;
  numbers[1] = pair.y;
#else
  for (int i = 0; i < 2; ++i) numbers[i] = decoded<Type>(static_cast<uint8_t>(codes >> 8 * i));
#endif
}

}  // namespace onnx_train::cuda
