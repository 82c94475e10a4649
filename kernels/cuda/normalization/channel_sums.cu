#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/math/activations.h"

namespace onnx_train::cuda {
namespace {

// What a thread adds: packs of kCount neighbours, which belong to one channel or to as many channels. kAhead packs are
// read before the first is added, so that each multiprocessor waits for enough bytes at a time.

// Sums are relative to the first element that a thread reads: cancellation in the variance is then bounded by the
// variance itself.
template <typename X>
struct MomentsOf {
  using T = Computed<X>;
  using Result = Moments<T>;
  static constexpr int kAhead = 4;
  const X* x;

  struct Sums {
    T shift, first = 0, second = 0;
  };
  template <int kCount>
  using Pack = StoredElements<kCount, X>;

  // `at` is the first element that the thread reads.
  __device__ Sums start(int64_t, int64_t at) const { return {widened(x[at])}; }
  template <int kCount>
  __device__ Pack<kCount> read(int64_t at) const {
    return load_stored<kCount>(x + at);
  }
  // Adds element i of a pack to sums[i], or to sums[0] if all elements have one channel.
  template <int kCount, int kChannels>
  __device__ void add(Sums (&sums)[kChannels], const Pack<kCount>& elements, int64_t) const {
    for (int i = 0; i < kCount; ++i) {
      Sums& s = sums[kChannels == 1 ? 0 : i];
      const T d = widened(elements[i]) - s.shift;
      s.first += d;
      s.second += d * d;
    }
  }
  __device__ Result finish(const Sums& sums, int64_t elements) const {
    const T count = static_cast<T>(elements), offset = sums.first / count, square = sums.second - sums.first * offset;
    return {count, sums.shift + offset, square < T{0} ? T{0} : square};
  }
};

template <typename X>
struct GradientSumsOf {
  using T = Computed<X>;
  using Result = GradientSums<T>;
  static constexpr int kAhead = 2;
  const X* x;
  Rectified<X> gradient;
  const T* mean;
  const Fault* guard;

  struct Sums {
    T mean, first = 0, second = 0;
  };
  template <int kCount>
  struct Pack {
    StoredElements<kCount, X> x, dy, y;
  };

  __device__ Sums start(int64_t channel, int64_t) const { return {mean[channel]}; }
  template <int kCount>
  __device__ Pack<kCount> read(int64_t at) const {
    const X* const y = gradient.y ? gradient.y : gradient.dy;  // a branch here would cost registers
    return {load_stored<kCount>(x + at), load_stored<kCount>(gradient.dy + at), load_stored<kCount>(y + at)};
  }
  template <int kCount, int kChannels>
  __device__ void add(Sums (&sums)[kChannels], const Pack<kCount>& pack, int64_t at) const {
    Elements<kCount, X> dz;
    for (int i = 0; i < kCount; ++i) {
      Sums& s = sums[kChannels == 1 ? 0 : i];
      T dy = widened(pack.dy[i]);
      if (gradient.y) dy = math::ReluGrad{}(dy, widened(pack.y[i]));
      dz[i] = math::convert<X>(dy);  // exact
      s.first += dy;
      s.second += dy * (widened(pack.x[i]) - s.mean);
    }
    if (gradient.dz && !stops(guard)) store(dz, gradient.dz + at);
  }
  __device__ Result finish(const Sums& sums, int64_t) const { return {sums.first, sums.second}; }
};

// Adds the packs at elements first, first + step, ... below last of a channel. results[i] belongs to element i of the
// packs, or results[0] to all.
template <int kCount, int kChannels, typename Op>
__device__ void sum_packs(const ChannelPlan& plan, const Op& op, int64_t channel, int64_t first, int64_t last,
                          int64_t step, typename Op::Result (&results)[kChannels]) {
  if (first >= last) {
    for (auto& result : results) result = {};
    return;
  }
  typename Op::Sums sums[kChannels];
  const int64_t start = plan.offset(channel, first);
  for (int i = 0; i < kChannels; ++i) sums[i] = op.start(channel + i, start + i);
  const auto add_ahead = [&]<int kAhead>(int64_t e, std::integral_constant<int, kAhead>) {
    typename Op::template Pack<kCount> packs[kAhead];
    for (int k = 0; k < kAhead; ++k) packs[k] = op.template read<kCount>(plan.offset(channel, e + k * step));
    for (int k = 0; k < kAhead; ++k) op.template add<kCount>(sums, packs[k], plan.offset(channel, e + k * step));
  };
  int64_t e = first;
  for (; e + (Op::kAhead - 1) * step < last; e += Op::kAhead * step) {
    add_ahead(e, std::integral_constant<int, Op::kAhead>());
  }
  for (; e < last; e += step) add_ahead(e, std::integral_constant<int, 1>());
  const int64_t added = (last - first + step - 1) / step * (kChannels == 1 ? kCount : 1);
  for (int i = 0; i < kChannels; ++i) results[i] = op.finish(sums[i], added);
}

// Block (x, y): channel, piece. The sizes of pieces and rows are multiples of kCount.
template <int kCount, typename Op>
__global__ void sum_rows(ChannelPlan plan, Op op, typename Op::Result* partials) {
  using Result = typename Op::Result;
  for (int64_t channel = blockIdx.x; channel < plan.channels; channel += gridDim.x) {
    Result results[1];
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    sum_packs<kCount>(plan, op, channel, first + threadIdx.x * kCount, last, kThreads * kCount, results);
    const Result result = merge_block<kThreads>(results[0], Result::merge);
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
    Result results[kCount];
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    sum_packs<kCount>(plan, op, channel, first + threadIdx.y, last, blockDim.y, results);
    for (int i = 0; i < kCount; ++i) {
      scratch[static_cast<int>(threadIdx.y) * width + static_cast<int>(threadIdx.x) * kCount + i] = results[i];
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
