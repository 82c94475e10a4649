#include "kernels/cuda/choices/noise.h"

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/ir/float8.h"

namespace onnx_train::cuda {
namespace {

// Mixes the bits of a number ("murmur3", 32-bit finalizer).
__device__ uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

template <typename S>
__global__ void fill_elements(int64_t n, uint32_t seed, S* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const auto bits = static_cast<int32_t>(mixed(static_cast<uint32_t>(i) + seed));
  to[i] = math::convert<S>(static_cast<Computed<S>>(bits) * static_cast<Computed<S>>(0x1p-31));
}

// Both signs, and codes below that of 1 in either type of 8 bits.
__global__ void fill_codes(int64_t n, uint32_t seed, uint8_t* to) {
  constexpr uint32_t kCodes = 0x38;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint32_t bits = mixed(static_cast<uint32_t>(i) + seed);
  to[i] = static_cast<uint8_t>((bits & 0x80) | (bits >> 8) % kCodes);
}

}  // namespace

void fill_with_noise(const Launch& launch, DType type, int64_t n, uint32_t seed, void* to) {
  if (is_8_bit_float(type))
    return enqueue_each(launch, "fill_with_noise", fill_codes, n, seed, static_cast<uint8_t*>(to));
  if (!is_stored(type)) return;
  dispatch_stored(type, [&]<typename S>(S) {
    enqueue_each(launch, "fill_with_noise", fill_elements<S>, n, seed, static_cast<S*>(to));
  });
}

}  // namespace onnx_train::cuda
