#include "kernels/cuda/convolution/channel_bias.h"

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"

namespace onnx_train::cuda {
namespace {

template <typename S>
__global__ void add_bias(int64_t n, Divider by_channel_size, Divider by_channels, const float* from, const float* bias,
                         S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t plane = by_channel_size.quotient(i);
  const int64_t channel = plane - by_channels.quotient(plane) * by_channels.divisor();
  y[i] = math::convert<S>(from[i] + bias[channel]);
}

}  // namespace

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
