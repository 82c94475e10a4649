#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/pack.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

// The channel of pack i; `by_row` divides by the packs of a row.
__device__ int64_t channel_of(int64_t i, const Divider& by_row, const Divider& by_channels) {
  const int64_t row = by_row.quotient(i);
  return row - by_channels.quotient(row) * by_channels.divisor();
}

template <int kCount, typename T>
__global__ void scale(int64_t n, Divider by_row, Divider by_channels, Scaling<T> scaling, const Fault* guard,
                      const T* x, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t channel = channel_of(i, by_row, by_channels);
  const T mean = scaling.mean ? scaling.mean[channel] : T{0}, factor = scaling.factor[channel];
  const T bias = scaling.bias ? scaling.bias[channel] : T{0};
  auto pack = reinterpret_cast<const Pack<T, kCount>*>(x)[i];
  for (T& value : pack.at) value = math::normalized(value, mean, factor, bias);
  reinterpret_cast<Pack<T, kCount>*>(y)[i] = pack;
}

template <int kCount, typename T>
__global__ void differentiate(int64_t n, Divider by_row, Divider by_channels, Slopes<T> slopes, const Fault* guard,
                              const T* x, const T* dy, T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t channel = channel_of(i, by_row, by_channels);
  const T mean = slopes.mean[channel], a = slopes.a[channel], b = slopes.b[channel], c = slopes.c[channel];
  const auto pack = reinterpret_cast<const Pack<T, kCount>*>(x)[i];
  auto result = reinterpret_cast<const Pack<T, kCount>*>(dy)[i];
  for (int k = 0; k < kCount; ++k) {
    result.at[k] = math::normalized_gradient(pack.at[k], result.at[k], mean, a, b, c);
  }
  reinterpret_cast<Pack<T, kCount>*>(dx)[i] = result;
}

}  // namespace

template <typename T>
void scale_channels(const Launch& launch, const ChannelPlan& plan, const Scaling<T>& scaling, const Fault* guard,
                    const T* x, T* y) {
  const bool packed = plan.rest % kPack<T> == 0;
  const int64_t count = packed ? kPack<T> : 1, n = plan.size() / count;
  enqueue(launch, "scale", packed ? scale<kPack<T>, T> : scale<1, T>, blocks_for(n), kThreads, 0, n,
          Divider(plan.rest / count), plan.by_channels, scaling, guard, x, y);
}

template <typename T>
void differentiate_channels(const Launch& launch, const ChannelPlan& plan, const Slopes<T>& slopes, const Fault* guard,
                            const T* x, const T* dy, T* dx) {
  const bool packed = plan.rest % kPack<T> == 0;
  const int64_t count = packed ? kPack<T> : 1, n = plan.size() / count;
  enqueue(launch, "differentiate", packed ? differentiate<kPack<T>, T> : differentiate<1, T>, blocks_for(n), kThreads,
          0, n, Divider(plan.rest / count), plan.by_channels, slopes, guard, x, dy, dx);
}

template void scale_channels(const Launch&, const ChannelPlan&, const Scaling<float>&, const Fault*, const float*,
                             float*);
template void scale_channels(const Launch&, const ChannelPlan&, const Scaling<double>&, const Fault*, const double*,
                             double*);
template void differentiate_channels(const Launch&, const ChannelPlan&, const Slopes<float>&, const Fault*,
                                     const float*, const float*, float*);
template void differentiate_channels(const Launch&, const ChannelPlan&, const Slopes<double>&, const Fault*,
                                     const double*, const double*, double*);

}  // namespace onnx_train::cuda
