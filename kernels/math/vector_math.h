// Transcendental functions of one float, without branches and calls, so that loops over them vectorize. The error is at
// most 2.5 units in the last place over the whole range (tests/kernels/vector_math_test.cc measures it); NaN,
// infinities, zeros and denormals give libm's results. The overloads for double are libm's functions: float64 exists
// for verification. Pure functions; any thread.
//
// The polynomials are minimax fits (weighted least squares, reweighted until the error is level).
//
// A GPU has instructions for exponentials and logarithms. There these are CUDA's functions, whose errors are at most 2
// units in the last place ("CUDA C++ Programming Guide", mathematical functions).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

#ifdef __CUDA_ARCH__

ONNX_TRAIN_HD inline float exp(float x) { return ::expf(x); }
ONNX_TRAIN_HD inline float exp_to_one(float x) { return ::exp2f(x * 1.44269504f); }
ONNX_TRAIN_HD inline float larger(float a, float b) { return ::fmaxf(a, b); }
ONNX_TRAIN_HD inline float expm1(float x) { return ::expm1f(x); }
ONNX_TRAIN_HD inline float tanh(float x) { return ::tanhf(x); }
ONNX_TRAIN_HD inline float log(float x) { return ::logf(x); }
ONNX_TRAIN_HD inline float log1p_of_fraction(float x) { return ::log1pf(x); }
ONNX_TRAIN_HD inline float erf(float x) { return ::erff(x); }

#else

namespace detail {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693145752f;    // ln 2 with its last bits cleared: n·kLn2High is exact
inline constexpr float kLn2Low = 1.42860677e-6f;   // the rest
inline constexpr float kRoundToInt = 12582912.0f;  // 1.5·2²³: adding it to a float rounds away the fraction
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2ⁿ for n in [-126, 127].
ONNX_TRAIN_HD inline float power_of_two(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// x = n ln 2 + r with |r| <= ln 2 / 2, and p = exp(r) - 1.
struct Reduced {
  int32_t n;
  float p;
};

// For |x| < 2²¹; a NaN gives p = NaN.
ONNX_TRAIN_HD inline Reduced reduce(float x) {
  const float shifted = x * kLog2E + kRoundToInt;
  const float n = shifted - kRoundToInt;
  float r = x - n * kLn2High;
  r -= n * kLn2Low;
  float q = 1.984595729e-04f;
  q = q * r + 1.394165331e-03f;
  q = q * r + 8.333391510e-03f;
  q = q * r + 4.166634753e-02f;
  q = q * r + 1.666666567e-01f;
  q = q * r + 0.5f;
  // The low bits of `shifted` are n; this is defined for NaN, too.
  const uint32_t bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInt);
  return {static_cast<int32_t>(bits), r + r * r * q};
}

}  // namespace detail

ONNX_TRAIN_HD inline float exp(float x) {
  x = x < -104.0f ? -104.0f : x;  // exp is 0 below
  x = x > 89.0f ? 89.0f : x;      // exp is infinity above
  const detail::Reduced e = detail::reduce(x);
  const int32_t half = e.n >> 1;  // applied in two steps: 2ⁿ alone may be denormal or overflow
  return (1.0f + e.p) * detail::power_of_two(half) * detail::power_of_two(e.n - half);
}

// exp(x) for sums of exponentials of which the largest is 1: x <= 0. A GPU needs half of the instructions for it; the
// relative error there is at most (|x| + 3) 2⁻²³, so the absolute one is below 2⁻²¹.
ONNX_TRAIN_HD inline float exp_to_one(float x) { return exp(x); }

// The larger of two numbers; a, if b is NaN.
ONNX_TRAIN_HD inline float larger(float a, float b) { return b > a ? b : a; }

// exp(x) - 1 without cancellation near zero.
ONNX_TRAIN_HD inline float expm1(float x) {
  const float zero_or_tiny = x;
  x = x < -25.0f ? -25.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const detail::Reduced e = detail::reduce(x);
  const float scale = detail::power_of_two(e.n - 1);  // half of 2ⁿ, which may overflow
  const float y = 2.0f * (scale * e.p + (scale - 0.5f));
  return zero_or_tiny == 0.0f ? zero_or_tiny : y;
}

// tanh|x| = (e - 1) / (e + 1) with e = exp(2|x|)
ONNX_TRAIN_HD inline float tanh(float x) {
  float a = std::fabs(x);
  a = a > 10.0f ? 10.0f : a;
  const float e = expm1(2.0f * a);
  return std::copysign(e / (e + 2.0f), x);
}

// x = 2ᵏ m with m in [2/3, 4/3); log(1 + f) = f - f²/2 + f³ P(f)
ONNX_TRAIN_HD inline float log(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();
  const uint32_t bits = std::bit_cast<uint32_t>(tiny ? x * 8388608.0f : x);
  const uint32_t exponent = (bits - 0x3f2aaaabu) & 0xff800000u;
  const float k = static_cast<float>(static_cast<int32_t>(exponent) >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = std::bit_cast<float>(bits - exponent) - 1.0f;
  float p = 1.200705245e-01f;
  p = p * f - 1.284507662e-01f;
  p = p * f + 1.075426042e-01f;
  p = p * f - 1.219577417e-01f;
  p = p * f + 1.430445462e-01f;
  p = p * f - 1.667957902e-01f;
  p = p * f + 1.999959797e-01f;
  p = p * f - 2.499981970e-01f;
  p = p * f + 3.333333433e-01f;
  float y = f * f * (f * p - 0.5f) + k * detail::kLn2Low;
  y = k * detail::kLn2High + (f + y);
  y = x == 0.0f ? -detail::kInfinity : y;
  y = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
  return x < detail::kInfinity ? y : x;  // log of infinity and of NaN is the operand itself
}

// log(1 + x) for x in [0, 1]; the last term restores what rounding 1 + x lost.
ONNX_TRAIN_HD inline float log1p_of_fraction(float x) {
  const float u = 1.0f + x;
  return log(u) + (x - (u - 1.0f)) / u;
}

// x| < 1: x P(x²); otherwise 1 - exp(Q(|x|)), where Q is fitted to log(erfc).
ONNX_TRAIN_HD inline float erf(float x) {
  float a = std::fabs(x);
  const float s = x * x;
  float p = 7.854009891e-05f;
  p = p * s - 8.010242018e-04f;
  p = p * s + 5.188333802e-03f;
  p = p * s - 2.685381472e-02f;
  p = p * s + 1.128358543e-01f;
  p = p * s - 3.761262596e-01f;
  p = p * s + 1.283791067e-01f;
  const float small = x + x * p;  // the leading coefficient is 1 larger
  a = a > 4.0f ? 4.0f : a;
  float q = 1.863799989e-04f;
  q = q * a - 2.947665984e-03f;
  q = q * a + 2.183809318e-02f;
  q = q * a - 1.031068116e-01f;
  q = q * a - 6.381447911e-01f;
  q = q * a - 1.127089262e+00f;
  q = q * a - 3.415135725e-04f;
  const detail::Reduced e = detail::reduce(q);  // q > -16, so 2ⁿ is a normal number
  const float large = std::copysign(1.0f - (1.0f + e.p) * detail::power_of_two(e.n), x);
  return a < 1.0f ? small : large;
}

#endif

ONNX_TRAIN_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

ONNX_TRAIN_HD inline double exp(double x) { return std::exp(x); }
ONNX_TRAIN_HD inline double exp_to_one(double x) { return std::exp(x); }
ONNX_TRAIN_HD inline double larger(double a, double b) { return b > a ? b : a; }
ONNX_TRAIN_HD inline double expm1(double x) { return std::expm1(x); }
ONNX_TRAIN_HD inline double tanh(double x) { return std::tanh(x); }
ONNX_TRAIN_HD inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
ONNX_TRAIN_HD inline double log(double x) { return std::log(x); }
ONNX_TRAIN_HD inline double log1p_of_fraction(double x) { return std::log1p(x); }
ONNX_TRAIN_HD inline double erf(double x) { return std::erf(x); }

}  // namespace onnx_train::math
