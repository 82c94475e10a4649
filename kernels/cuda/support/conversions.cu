#include "kernels/cuda/support/conversions.h"

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"

namespace onnx_train::cuda {
namespace {

template <typename From, typename To>
__global__ void convert_elements(int64_t n, const From* from, To* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) to[i] = math::convert<To>(widened(from[i]));
}

}  // namespace

void widen(const Launch& launch, DType type, int64_t n, const void* from, float* to) {
  dispatch_narrow(type, [&]<typename S>(S) {
    enqueue_each(launch, "widen", convert_elements<S, float>, n, static_cast<const S*>(from), to);
  });
}

void narrow(const Launch& launch, DType type, int64_t n, const float* from, void* to) {
  dispatch_narrow(type, [&]<typename S>(S) {
    enqueue_each(launch, "narrow", convert_elements<float, S>, n, from, static_cast<S*>(to));
  });
}

}  // namespace onnx_train::cuda
