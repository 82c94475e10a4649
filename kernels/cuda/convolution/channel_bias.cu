#include "kernels/cuda/convolution/channel_bias.h"

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"

namespace onnx_train::cuda {
namespace {

template <typename S>
__global__ void add_bias(int64_t n, Divider by_channel_size, Divider by_channels, const Computed<S>* from,
                         const Computed<S>* bias, S* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t plane = by_channel_size.quotient(i);
  const int64_t channel = plane - by_channels.quotient(plane) * by_channels.divisor();
  y[i] = math::convert<S>((from ? from[i] : 0) + (bias ? bias[channel] : 0));
}

}  // namespace

void add_channel_bias(const Launch& launch, const Shape& shape, const void* from, const void* bias, DType type,
                      void* y) {
  const int64_t n = num_elements(shape);
  if (n == 0) return;
  const Divider by_channel_size(n / (shape[0] * shape[1])), by_channels(shape[1]);
  dispatch_stored(type, [&]<typename S>(S) {
    using T = Computed<S>;
    enqueue_each(launch, "add_bias", add_bias<S>, n, by_channel_size, by_channels, static_cast<const T*>(from),
                 static_cast<const T*>(bias), static_cast<S*>(y));
  });
}

}  // namespace onnx_train::cuda
