#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/pack.h"

namespace onnx_train::cuda {
namespace {

template <typename X, typename Y>
inline constexpr int kPack = static_cast<int>(16 / std::max(sizeof(X), sizeof(Y)));

// The channel of pack i; `by_row` divides by the packs of a row.
__device__ int64_t channel_of(int64_t i, const Divider& by_row, const Divider& by_channels) {
  const int64_t row = by_row.quotient(i);
  return row - by_channels.quotient(row) * by_channels.divisor();
}

template <int kCount, typename X, typename Y, typename T = Computed<X>>
__global__ void scale(int64_t n, Divider by_row, Divider by_channels, Scaling<T> scaling, const Fault* guard,
                      const X* x, Y* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t channel = channel_of(i, by_row, by_channels);
  const T mean = scaling.mean ? scaling.mean[channel] : T{0}, factor = scaling.factor[channel];
  const T bias = scaling.bias ? scaling.bias[channel] : T{0};
  const auto pack = reinterpret_cast<const Pack<X, kCount>*>(x)[i];
  Pack<Y, kCount> result;
  for (int k = 0; k < kCount; ++k) {
    result.at[k] = math::convert<Y>(math::normalized(widened(pack.at[k]), mean, factor, bias));
  }
  reinterpret_cast<Pack<Y, kCount>*>(y)[i] = result;
}

template <int kCount, typename X, typename DX, typename T = Computed<X>>
__global__ void differentiate(int64_t n, Divider by_row, Divider by_channels, Slopes<T> slopes, const Fault* guard,
                              const X* x, const X* dy, DX* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t channel = channel_of(i, by_row, by_channels);
  const T mean = slopes.mean[channel], a = slopes.a[channel], b = slopes.b[channel], c = slopes.c[channel];
  const auto pack = reinterpret_cast<const Pack<X, kCount>*>(x)[i];
  const auto gradients = reinterpret_cast<const Pack<X, kCount>*>(dy)[i];
  Pack<DX, kCount> result;
  for (int k = 0; k < kCount; ++k) {
    result.at[k] =
        math::convert<DX>(math::normalized_gradient(widened(pack.at[k]), widened(gradients.at[k]), mean, a, b, c));
  }
  reinterpret_cast<Pack<DX, kCount>*>(dx)[i] = result;
}

}  // namespace

template <typename X, typename Y>
void scale_channels(const Launch& launch, const ChannelPlan& plan, const Scaling<Computed<X>>& scaling,
                    const Fault* guard, const X* x, Y* y) {
  constexpr int kCount = kPack<X, Y>;
  const bool packed = plan.rest % kCount == 0;
  const int64_t count = packed ? kCount : 1, n = plan.size() / count;
  enqueue(launch, "scale", packed ? scale<kCount, X, Y> : scale<1, X, Y>, blocks_for(n), kThreads, 0, n,
          Divider(plan.rest / count), plan.by_channels, scaling, guard, x, y);
}

template <typename X, typename DX>
void differentiate_channels(const Launch& launch, const ChannelPlan& plan, const Slopes<Computed<X>>& slopes,
                            const Fault* guard, const X* x, const X* dy, DX* dx) {
  constexpr int kCount = kPack<X, DX>;
  const bool packed = plan.rest % kCount == 0;
  const int64_t count = packed ? kCount : 1, n = plan.size() / count;
  enqueue(launch, "differentiate", packed ? differentiate<kCount, X, DX> : differentiate<1, X, DX>, blocks_for(n),
          kThreads, 0, n, Divider(plan.rest / count), plan.by_channels, slopes, guard, x, dy, dx);
}

// NOLINTBEGIN(bugprone-macro-parentheses): its arguments are types
#define MAPS_OF(X, Y)                                                                                                  \
  template void scale_channels(const Launch&, const ChannelPlan&, const Scaling<Computed<X>>&, const Fault*, const X*, \
                               Y*);                                                                                    \
  template void differentiate_channels(const Launch&, const ChannelPlan&, const Slopes<Computed<X>>&, const Fault*,    \
                                       const X*, const X*, Y*)
// NOLINTEND(bugprone-macro-parentheses)
MAPS_OF(float, float);
MAPS_OF(double, double);
MAPS_OF(double, float);  // these two are never called, but dispatch_stored_pair refers to them
MAPS_OF(float, double);
MAPS_OF(BFloat16, BFloat16);
MAPS_OF(BFloat16, float);
MAPS_OF(float, BFloat16);
MAPS_OF(__half, __half);
MAPS_OF(__half, float);
MAPS_OF(float, __half);

}  // namespace onnx_train::cuda
