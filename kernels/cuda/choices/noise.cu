#include "kernels/cuda/choices/noise.h"

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"

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

}  // namespace

void fill_with_noise(const Launch& launch, DType type, int64_t n, uint32_t seed, void* to) {
  if (!is_stored(type)) return;
  dispatch_stored(type, [&]<typename S>(S) {
    enqueue_each(launch, "fill_with_noise", fill_elements<S>, n, seed, static_cast<S*>(to));
  });
}

}  // namespace onnx_train::cuda
