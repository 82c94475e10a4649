#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/math/activations.h"

namespace onnx_train::cuda {
namespace {

// A thread's sums are relative to the first element that it reads: cancellation in the variance is then bounded by the
// variance itself.
template <typename X>
struct MomentsOf {
  using T = Computed<X>;
  using Result = Moments<T>;
  const X* x;

  struct Sums {
    T shift = 0, first = 0, second = 0;
    int64_t count = 0;
  };
  __device__ Sums start(int64_t) const { return {}; }
  // Adds element i of a pack to sums[i], or to sums[0] if all elements have one channel.
  template <int kCount, int kChannels>
  __device__ void add(Sums (&sums)[kChannels], int64_t at) const {
    const auto elements = load<kCount>(x + at);
    for (int i = 0; i < kCount; ++i) {
      Sums& s = sums[kChannels == 1 ? 0 : i];
      if (s.count == 0) s.shift = widened(elements[i]);
      const T d = widened(elements[i]) - s.shift;
      s.first += d;
      s.second += d * d;
      ++s.count;
    }
  }
  __device__ Result finish(const Sums& sums) const {
    if (sums.count == 0) return {0, 0, 0};
    const T count = static_cast<T>(sums.count), offset = sums.first / count, square = sums.second - sums.first * offset;
    return {count, sums.shift + offset, square < T{0} ? T{0} : square};
  }
};

template <typename X>
struct GradientSumsOf {
  using T = Computed<X>;
  using Result = GradientSums<T>;
  const X* x;
  Rectified<X> gradient;
  const T* mean;
  const Fault* guard;

  struct Sums {
    T mean = 0, first = 0, second = 0;
  };
  __device__ Sums start(int64_t channel) const { return {mean[channel]}; }
  template <int kCount, int kChannels>
  __device__ void add(Sums (&sums)[kChannels], int64_t at) const {
    const auto elements = load<kCount>(x + at);
    auto gradients = load<kCount>(gradient.dy + at);
    if (gradient.y) {
      const auto results = load<kCount>(gradient.y + at);
      for (int i = 0; i < kCount; ++i)
        gradients[i] = math::convert<X>(math::ReluGrad{}(widened(gradients[i]), widened(results[i])));  // exact
      if (gradient.dz && !stops(guard)) store(gradients, gradient.dz + at);
    }
    for (int i = 0; i < kCount; ++i) {
      Sums& s = sums[kChannels == 1 ? 0 : i];
      const T dy = widened(gradients[i]);
      s.first += dy;
      s.second += dy * (widened(elements[i]) - s.mean);
    }
  }
  __device__ Result finish(const Sums& sums) const { return {sums.first, sums.second}; }
};

// Block (x, y): channel, piece. The sizes of pieces and rows are multiples of kCount.
template <int kCount, typename Op>
__global__ void sum_rows(ChannelPlan plan, Op op, typename Op::Result* partials) {
  using Result = typename Op::Result;
  for (int64_t channel = blockIdx.x; channel < plan.channels; channel += gridDim.x) {
    typename Op::Sums sums[] = {op.start(channel)};
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    for (int64_t e = first + threadIdx.x * kCount; e < last; e += kThreads * kCount) {
      op.template add<kCount>(sums, plan.offset(channel, e));
    }
    const Result result = merge_block<kThreads>(op.finish(sums[0]), Result::merge);
    if (threadIdx.x == 0) partials[channel * plan.pieces + blockIdx.y] = result;
  }
}

// Neighbouring threads read neighbouring channels, kCount each; each row of threads reads every blockDim.y-th element
// of the piece. Block (x, y): channels, piece.
template <int kCount, typename Op>
__global__ void sum_columns(ChannelPlan plan, Op op, typename Op::Result* partials) {
  using Result = typename Op::Result;
  GPU_SHARED(scratch, Result[kThreads * kCount]);
  const int width = static_cast<int>(blockDim.x) * kCount;  // channels of the block
  const int64_t first_channel = int64_t{blockIdx.x} * width, channel = first_channel + threadIdx.x * kCount;
  if (channel < plan.channels) {
    typename Op::Sums sums[kCount];
    for (int i = 0; i < kCount; ++i) sums[i] = op.start(channel + i);
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    for (int64_t e = first + threadIdx.y; e < last; e += blockDim.y) {
      op.template add<kCount>(sums, plan.offset(channel, e));
    }
    for (int i = 0; i < kCount; ++i) {
      scratch[static_cast<int>(threadIdx.y) * width + static_cast<int>(threadIdx.x) * kCount + i] = op.finish(sums[i]);
    }
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  if (thread >= width || first_channel + thread >= plan.channels) return;
  Result result = scratch[thread];
  for (int row = 1; row < static_cast<int>(blockDim.y); ++row) {
    result = Result::merge(result, scratch[row * width + thread]);
  }
  partials[(first_channel + thread) * plan.pieces + blockIdx.y] = result;
}

template <int kCount, typename Op>
void run_packs(const Launch& launch, const ChannelPlan& plan, const Op& op, typename Op::Result* partials) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  const dim3 grid(static_cast<unsigned>(std::min(plan.channel_blocks(), kMostBlocks)),
                  static_cast<unsigned>(plan.pieces));
  const bool by_columns = plan.columns > 0 && plan.channel_blocks() <= kMostBlocks;
  enqueue(launch, by_columns ? "sum_columns" : "sum_rows", by_columns ? sum_columns<kCount, Op> : sum_rows<kCount, Op>,
          grid, plan.block(), 0, plan, op, partials);
}

template <typename Op>
void run(const Launch& launch, const ChannelPlan& plan, const Op& op, typename Op::Result* partials) {
  if (plan.pack == 8) return run_packs<8>(launch, plan, op, partials);
  if (plan.pack == 4) return run_packs<4>(launch, plan, op, partials);
  run_packs<1>(launch, plan, op, partials);
}

}  // namespace

template <typename X>
void sum_moments(const Launch& launch, const ChannelPlan& plan, const X* x, Moments<Computed<X>>* partials) {
  run(launch, plan, MomentsOf<X>{x}, partials);
}

template <typename X>
void sum_gradients(const Launch& launch, const ChannelPlan& plan, const X* x, const Rectified<X>& gradient,
                   const Computed<X>* mean, const Fault* guard, GradientSums<Computed<X>>* partials) {
  run(launch, plan, GradientSumsOf<X>{x, gradient, mean, guard}, partials);
}

// NOLINTBEGIN(bugprone-macro-parentheses): its arguments are types
#define SUMS_OF(X)                                                                                                  \
  template void sum_moments(const Launch&, const ChannelPlan&, const X*, Moments<Computed<X>>*);                    \
  template void sum_gradients(const Launch&, const ChannelPlan&, const X*, const Rectified<X>&, const Computed<X>*, \
                              const Fault*, GradientSums<Computed<X>>*)
// NOLINTEND(bugprone-macro-parentheses)
SUMS_OF(float);
SUMS_OF(double);
SUMS_OF(BFloat16);
SUMS_OF(__half);

}  // namespace onnx_train::cuda
