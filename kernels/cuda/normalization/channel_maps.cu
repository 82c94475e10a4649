// Element-wise passes over images with per-channel values. With channels last, a thread has the same few channels in
// all rows that it reads.
#include "kernels/cuda/normalization/channels.h"
#include "kernels/math/activations.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
__device__ T rounded(T value, DType to) {
  if constexpr (std::is_same_v<T, float>) {
    if (to == DType::kBFloat16) return widened(math::convert<BFloat16>(value));
    if (to == DType::kFloat16) return widened(math::convert<__half>(value));
  }
  return value;
}

template <typename X, typename Y>
struct Scale {
  using T = Computed<X>;
  Scaling<T> scaling;
  AfterScaling<X> after;
  const X* x;
  Y* y;

  struct Values {
    T mean, factor, bias;
  };
  __device__ Values values(int64_t channel) const {
    return {scaling.mean ? scaling.mean[channel] : T{0}, scaling.factor[channel],
            scaling.bias ? scaling.bias[channel] : T{0}};
  }
  // Element i of a pack uses values[i], or values[0] if all elements have one channel.
  template <int kCount, int kChannels>
  __device__ void apply(const Values (&values)[kChannels], int64_t at) const {
    const auto elements = load<kCount>(x + at);
    Elements<kCount, X> added;
    if (after.residual) added = load<kCount>(after.residual + at);
    Elements<kCount, Y> result;
    for (int i = 0; i < kCount; ++i) {
      const Values& v = values[kChannels == 1 ? 0 : i];
      T element = math::normalized(widened(elements[i]), v.mean, v.factor, v.bias);
      element = rounded(element, after.round_to);
      if (after.residual) element = rounded(element + widened(added[i]), after.round_to);
      if (after.relu) element = math::Relu{}(element);
      result[i] = math::convert<Y>(element);
    }
    store(result, y + at);
  }
};

template <typename X, typename DX>
struct Differentiate {
  using T = Computed<X>;
  Slopes<T> slopes;
  const X *x, *dy, *y;
  DX* dx;

  struct Values {
    T mean, a, b, c;
  };
  __device__ Values values(int64_t channel) const {
    return {slopes.mean ? slopes.mean[channel] : T{0}, slopes.a[channel], slopes.b ? slopes.b[channel] : T{0},
            slopes.c ? slopes.c[channel] : T{0}};
  }
  template <int kCount, int kChannels>
  __device__ void apply(const Values (&values)[kChannels], int64_t at) const {
    const auto elements = load<kCount>(x + at), gradients = load<kCount>(dy + at);
    Elements<kCount, X> results;
    if (y) results = load<kCount>(y + at);
    Elements<kCount, DX> result;
    for (int i = 0; i < kCount; ++i) {
      const Values& v = values[kChannels == 1 ? 0 : i];
      T gradient = widened(gradients[i]);
      if (y) gradient = math::ReluGrad{}(gradient, widened(results[i]));
      result[i] = math::convert<DX>(math::normalized_gradient(widened(elements[i]), gradient, v.mean, v.a, v.b, v.c));
    }
    store(result, dx + at);
  }
};

// One thread for each of n packs within channels; `by_row` divides by the packs of a row.
template <int kCount, typename Op>
__global__ void map_rows(int64_t n, Divider by_row, Divider by_channels, const Fault* guard, Op op) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || stops(guard)) return;
  const int64_t row = by_row.quotient(i);
  const typename Op::Values values[] = {op.values(row - by_channels.quotient(row) * by_channels.divisor())};
  op.template apply<kCount>(values, i * kCount);
}

// Images [count, channels]. A thread reads kCount channels of kRows rows.
constexpr int kRows = 8;

template <int kCount, typename Op>
__global__ void map_columns(ChannelPlan plan, const Fault* guard, Op op) {
  const int64_t channel = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kCount;
  if (channel >= plan.channels || stops(guard)) return;
  typename Op::Values values[kCount];
  for (int i = 0; i < kCount; ++i) values[i] = op.values(channel + i);
  const int64_t first = int64_t{blockIdx.x} * blockDim.y * kRows + threadIdx.y;
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = first + r * int64_t{blockDim.y};
    if (row < plan.count) op.template apply<kCount>(values, row * plan.channels + channel);
  }
}

template <int kCount, typename Op>
void run_columns(const Launch& launch, const char* name, const ChannelPlan& plan, const Fault* guard, const Op& op) {
  const dim3 block = plan.block();
  const int64_t rows = int64_t{block.y} * kRows;
  const dim3 grid(static_cast<unsigned>((plan.count + rows - 1) / rows), static_cast<unsigned>(plan.channel_blocks()));
  enqueue(launch, name, map_columns<kCount, Op>, grid, block, 0, plan, guard, op);
}

// kWidest is the number of elements in an access of 16 bytes.
template <int kWidest, typename Op>
void run(const Launch& launch, const char* name, const ChannelPlan& plan, const Fault* guard, const Op& op) {
  constexpr int64_t kMostBlocks = 0xffff;  // along y
  if (plan.is_last() && plan.pack > 1 && plan.channel_blocks() <= kMostBlocks) {
    return plan.pack == 8 ? run_columns<8>(launch, name, plan, guard, op)
                          : run_columns<4>(launch, name, plan, guard, op);
  }
  const int64_t count = plan.rest % kWidest == 0 ? kWidest : 1, n = plan.size() / count;
  enqueue_each(launch, name, count > 1 ? map_rows<kWidest, Op> : map_rows<1, Op>, n, Divider(plan.rest / count),
               plan.by_channels, guard, op);
}

template <typename X, typename Y>
inline constexpr int kWidest = static_cast<int>(kVectorBytes / std::max(sizeof(X), sizeof(Y)));

}  // namespace

template <typename X, typename Y>
void scale_channels(const Launch& launch, const ChannelPlan& plan, const Scaling<Computed<X>>& scaling,
                    const AfterScaling<X>& after, const Fault* guard, const X* x, Y* y) {
  run<kWidest<X, Y>>(launch, "scale", plan, guard, Scale<X, Y>{scaling, after, x, y});
}

template <typename X, typename DX>
void differentiate_channels(const Launch& launch, const ChannelPlan& plan, const Slopes<Computed<X>>& slopes,
                            const Fault* guard, const X* x, const Rectified<X>& gradient, DX* dx) {
  run<kWidest<X, DX>>(launch, "differentiate", plan, guard,
                      Differentiate<X, DX>{slopes, x, gradient.dy, gradient.y, dx});
}

// NOLINTBEGIN(bugprone-macro-parentheses): its arguments are types
#define MAPS_OF(X, Y)                                                                                                  \
  template void scale_channels(const Launch&, const ChannelPlan&, const Scaling<Computed<X>>&, const AfterScaling<X>&, \
                               const Fault*, const X*, Y*);                                                            \
  template void differentiate_channels(const Launch&, const ChannelPlan&, const Slopes<Computed<X>>&, const Fault*,    \
                                       const X*, const Rectified<X>&, Y*)
// NOLINTEND(bugprone-macro-parentheses)
MAPS_OF(float, float);
MAPS_OF(double, double);
MAPS_OF(BFloat16, BFloat16);
MAPS_OF(BFloat16, float);
MAPS_OF(float, BFloat16);
MAPS_OF(__half, __half);
MAPS_OF(__half, float);
MAPS_OF(float, __half);

}  // namespace onnx_train::cuda
