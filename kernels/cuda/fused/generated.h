// The header of generated kernels: includes the formulas of both devices and declares the few functions that only
// generated code calls. NVRTC finds these files in the program (cmake/embed.cmake).
#pragma once

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/row_threads.h"
#include "kernels/cuda/support/wide.h"
#include "kernels/math/activations.h"
#include "kernels/math/binary.h"
#include "kernels/math/convert.h"
#include "kernels/math/float8.h"
#include "kernels/math/reducers.h"
#include "kernels/math/unary.h"

namespace onnx_train::cuda {

// Returns the value that consists of these bytes.
template <typename T>
__device__ T from_bytes(const unsigned char (&bytes)[sizeof(T)]) {
  T value;
  memcpy(&value, bytes, sizeof(T));
  return value;
}

template <int kCount, typename T>
__device__ Pack<T, kCount> load(const T* from) {
  return *gpu::vector_at<const Pack<T, kCount>>(from);
}
template <int kCount, typename T>
__device__ void store(T* to, const Pack<T, kCount>& pack) {
  *gpu::vector_at<Pack<T, kCount>>(to) = pack;
}

// f(... f(f(x0, x1), x2) ...)
template <typename T, typename F, int kCount>
__device__ T fold(const F& f, const T (&x)[kCount]) {
  T all = x[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) all = f(all, x[i]);
  return all;
}

template <typename T, bool kHasLow, bool kHasHigh>
__device__ T clip(T x, T low, T high) {
  return math::Clip<T>::between(kHasLow ? &low : nullptr, kHasHigh ? &high : nullptr)(x);
}

template <typename T, typename E>
__device__ T power(T base, E exponent) {
  switch (math::exponent_of_product<T>(exponent)) {
    case 2: return math::Square{}(base);
    case 3: return math::Cube{}(base);
    default: return math::Pow{}(base, exponent);
  }
}

}  // namespace onnx_train::cuda
