// Elements that kernels store in 16 bits and compute in float32; all other types are computed unchanged. Pure
// functions; any thread.
#pragma once

#include "kernels/cuda/support/gpu.h"
#include "kernels/dispatch.h"
#include "kernels/math/convert.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::math {
template <>
inline constexpr bool kIsHalf<__half> = true;

// One instruction in the place of six. It makes one NaN of all.
template <>
ONNX_TRAIN_HD inline BFloat16 rounded<BFloat16>(float x) {
#ifdef __CUDA_ARCH__
  return std::bit_cast<BFloat16>(__float2bfloat16_rn(x));
#else
  return BFloat16(x);
#endif
}

}  // namespace onnx_train::math

namespace onnx_train::cuda {

inline bool is_half(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

// The type in which elements stored as S are computed.
template <typename S>
using Computed = std::conditional_t<math::kIsHalf<S>, float, S>;

template <typename S>
__host__ __device__ inline Computed<S> widened(S x) {
  return math::convert<Computed<S>>(x);
}

// Calls f(S{}) for a 16-bit type S: BFloat16 or CUDA's own float16.
template <typename F>
auto dispatch_half(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  if (dtype == DType::kFloat16) return f(__half{});
  fail("a kernel for 16-bit floats got ", name(dtype));
}

// Calls f(S{}) for S = float, double or a 16-bit type.
template <typename F>
auto dispatch_stored(DType dtype, F&& f) {
  return is_half(dtype) ? dispatch_half(dtype, f) : dispatch_float(dtype, f);
}

inline bool is_stored(DType dtype) { return is_float_or_double(dtype) || is_half(dtype); }

// Whether a kernel may read elements of type `in` and write elements of type `out`: both are computed in one type, and
// only one 16-bit type occurs.
inline bool is_stored_pair(DType in, DType out) {
  return is_stored(in) && (in == out || (is_half(in) && out == DType::kFloat) || (in == DType::kFloat && is_half(out)));
}

// Calls f(In{}, Out{}) for a pair that is_stored_pair accepts.
template <typename F>
auto dispatch_stored_pair(DType in, DType out, F&& f) {
  if (in == out) return dispatch_stored(in, [&]<typename S>(S s) { return f(s, s); });
  if (out == DType::kFloat) return dispatch_half(in, [&]<typename S>(S s) { return f(s, float{}); });
  return dispatch_half(out, [&]<typename S>(S s) { return f(float{}, s); });
}

// Calls f(S{}) for S = float or a 16-bit float.
template <typename F>
void dispatch_narrow(DType type, F&& f) {
  if (type == DType::kBFloat16) return f(BFloat16{});
  if (type == DType::kFloat16) return f(__half{});
  return f(float{});
}

}  // namespace onnx_train::cuda
