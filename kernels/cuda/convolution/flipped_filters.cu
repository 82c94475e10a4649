#include "kernels/cuda/convolution/flipped_filters.h"

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {
namespace {

// One element of the result per thread.
template <typename T>
__global__ void flip(int64_t n, int64_t channels, Divider taps, Divider filters, const T* from, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t window = taps.quotient(i), tap = i - window * taps.divisor();
  const int64_t channel = filters.quotient(window), filter = window - channel * filters.divisor();
  to[i] = from[(filter * channels + channel) * taps.divisor() + taps.divisor() - 1 - tap];
}

}  // namespace

void flip_filters(const Launch& launch, const Shape& shape, DType type, const void* from, void* to) {
  const int64_t n = num_elements(shape);
  const Divider taps(n / (shape[0] * shape[1])), filters(shape[0]);
  const auto enqueue_as = [&]<typename T>(T) {
    enqueue_each(launch, "flip", flip<T>, n, shape[1], taps, filters, static_cast<const T*>(from), static_cast<T*>(to));
  };
  size_of(type) == 2 ? enqueue_as(uint16_t{}) : enqueue_as(uint32_t{});
}

}  // namespace onnx_train::cuda
