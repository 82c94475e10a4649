// Units of rows: the elements that a thread copies at a time.
#pragma once

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/math/convert.h"

namespace onnx_train::cuda {

template <typename T>
__device__ void copy_unit(const T& from, T* to) {
  *to = from;
}
// Rounds numbers of float32 to S.
template <typename S, int kCount>
__device__ void copy_unit(const Pack<float, kCount>& from, Pack<S, kCount>* to) {
  for (int i = 0; i < kCount; ++i) to->at[i] = math::convert<S>(from.at[i]);
}

// Calls f(Unit{}) for the widest unit, of up to 16 bytes, that divides rows of `bytes` bytes.
template <typename F>
void dispatch_unit(int64_t bytes, F&& f) {
  if (bytes % 16 == 0) return f(uint4{});
  if (bytes % 8 == 0) return f(uint64_t{});
  if (bytes % 4 == 0) return f(uint32_t{});
  if (bytes % 2 == 0) return f(uint16_t{});
  f(uint8_t{});
}

// Calls f(From{}, To{}) for the widest units of float32 rows of `bytes` bytes that are rounded to S.
template <typename S, typename F>
void dispatch_rounded_unit(int64_t bytes, F&& f) {
  constexpr int kWidest = kVectorBytes / sizeof(float);
  if (bytes % kVectorBytes == 0) return f(Pack<float, kWidest>{}, Pack<S, kWidest>{});
  f(Pack<float, 1>{}, Pack<S, 1>{});
}

}  // namespace onnx_train::cuda
