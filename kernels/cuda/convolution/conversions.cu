#include "kernels/cuda/convolution/conversions.h"

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"

namespace onnx_train::cuda {
namespace {

template <typename S>
__global__ void widen_elements(int64_t n, const S* from, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) to[i] = widened(from[i]);
}

template <typename S>
__global__ void add_bias(int64_t n, Divider by_channel_size, Divider by_channels, const float* from, const float* bias,
                         S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t plane = by_channel_size.quotient(i);
  const int64_t channel = plane - by_channels.quotient(plane) * by_channels.divisor();
  y[i] = math::convert<S>(from[i] + bias[channel]);
}

// Calls f(S{}) for S = float or a 16-bit float.
template <typename F>
void dispatch_narrow(DType type, F&& f) {
  if (type == DType::kBFloat16) return f(BFloat16{});
  if (type == DType::kFloat16) return f(__half{});
  return f(float{});
}

}  // namespace

void widen(const Launch& launch, DType type, int64_t n, const void* from, float* to) {
  dispatch_narrow(type, [&]<typename S>(S) {
    enqueue(launch, "widen_elements", widen_elements<S>, blocks_for(n), kThreads, 0, n, static_cast<const S*>(from),
            to);
  });
}

void add_channel_bias(const Launch& launch, const Shape& shape, const float* from, const float* bias, DType type,
                      void* y) {
  const int64_t n = num_elements(shape);
  const Divider by_channel_size(n / (shape[0] * shape[1])), by_channels(shape[1]);
  dispatch_narrow(type, [&]<typename S>(S) {
    enqueue(launch, "add_bias", add_bias<S>, blocks_for(n), kThreads, 0, n, by_channel_size, by_channels, from, bias,
            static_cast<S*>(y));
  });
}

}  // namespace onnx_train::cuda
