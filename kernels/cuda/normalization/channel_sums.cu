#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {
namespace {

constexpr int kColumns = 32;  // channels of a block where channels are short
constexpr int kRows = kThreads / kColumns;

// The sums of one thread are relative to the first element that it reads: that is one of the elements, so what
// cancels in the variance is never larger than the variance itself.
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
  template <int kCount>
  __device__ void add(Sums* sums, int64_t at) const {
    const auto pack = *reinterpret_cast<const Pack<X, kCount>*>(x + at);
    if (sums->count == 0) sums->shift = widened(pack.at[0]);
    for (int i = 0; i < kCount; ++i) {
      const T d = widened(pack.at[i]) - sums->shift;
      sums->first += d;
      sums->second += d * d;
    }
    sums->count += kCount;
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
  const X *x, *dy;
  const T* mean;

  struct Sums {
    T mean = 0, first = 0, second = 0;
  };
  __device__ Sums start(int64_t channel) const { return {mean[channel]}; }
  template <int kCount>
  __device__ void add(Sums* sums, int64_t at) const {
    const auto pack = *reinterpret_cast<const Pack<X, kCount>*>(x + at);
    const auto gradients = *reinterpret_cast<const Pack<X, kCount>*>(dy + at);
    for (int i = 0; i < kCount; ++i) {
      const T gradient = widened(gradients.at[i]);
      sums->first += gradient;
      sums->second += gradient * (widened(pack.at[i]) - sums->mean);
    }
  }
  __device__ Result finish(const Sums& sums) const { return {sums.first, sums.second}; }
};

// One channel per block. Block (x, y): channel, piece. A piece has a multiple of kCount elements, as do rows.
template <int kCount, typename Op>
__global__ void sum_rows(ChannelPlan plan, Op op, typename Op::Result* partials) {
  using Result = typename Op::Result;
  GPU_SHARED(scratch, Result[kThreads / gpu::kWarpSize]);
  for (int64_t channel = blockIdx.x; channel < plan.channels; channel += gridDim.x) {
    auto sums = op.start(channel);
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    for (int64_t e = first + threadIdx.x * kCount; e < last; e += kThreads * kCount) {
      op.template add<kCount>(&sums, plan.offset(channel, e));
    }
    const Result result = merge_block<kThreads>(op.finish(sums), scratch,
                                                [](const Result& a, const Result& b) { return Result::merge(a, b); });
    if (threadIdx.x == 0) partials[channel * plan.pieces + blockIdx.y] = result;
    __syncthreads();  // before the next channel uses `scratch`
  }
}

// kColumns channels per block; each of kRows rows of threads reads every kRows-th element of the piece.
template <typename Op>
__global__ void sum_columns(ChannelPlan plan, Op op, typename Op::Result* partials) {
  using Result = typename Op::Result;
  GPU_SHARED(scratch, Result[kRows][kColumns]);
  const int64_t channel = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  if (channel < plan.channels) {
    auto sums = op.start(channel);
    const int64_t first = blockIdx.y * plan.piece, last = std::min(first + plan.piece, plan.count);
    for (int64_t e = first + threadIdx.y; e < last; e += kRows) op.template add<1>(&sums, plan.offset(channel, e));
    scratch[threadIdx.y][threadIdx.x] = op.finish(sums);
  }
  __syncthreads();
  if (threadIdx.y != 0 || channel >= plan.channels) return;
  Result result = scratch[0][threadIdx.x];
  for (int row = 1; row < kRows; ++row) result = Result::merge(result, scratch[row][threadIdx.x]);
  partials[channel * plan.pieces + blockIdx.y] = result;
}

template <typename Op>
void run(const Launch& launch, const ChannelPlan& plan, const Op& op, typename Op::Result* partials) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  const auto pieces = static_cast<unsigned>(plan.pieces);
  const dim3 grid(static_cast<unsigned>(std::min(plan.channels, kMostBlocks)), pieces);
  if constexpr (std::is_same_v<typename Op::T, float>) {  // other types are rare: one kernel serves all shapes
    const int64_t blocks = (plan.channels + kColumns - 1) / kColumns;
    if (plan.is_short() && blocks <= kMostBlocks) {
      return enqueue(launch, "sum_columns", sum_columns<Op>, dim3(static_cast<unsigned>(blocks), pieces),
                     dim3(kColumns, kRows), 0, plan, op, partials);
    }
    if (plan.rest % 4 == 0 && plan.piece % 4 == 0) {
      return enqueue(launch, "sum_rows", sum_rows<4, Op>, grid, kThreads, 0, plan, op, partials);
    }
  }
  enqueue(launch, "sum_rows", sum_rows<1, Op>, grid, kThreads, 0, plan, op, partials);
}

}  // namespace

template <typename X>
void sum_moments(const Launch& launch, const ChannelPlan& plan, const X* x, Moments<Computed<X>>* partials) {
  run(launch, plan, MomentsOf<X>{x}, partials);
}

template <typename X>
void sum_gradients(const Launch& launch, const ChannelPlan& plan, const X* x, const X* dy, const Computed<X>* mean,
                   GradientSums<Computed<X>>* partials) {
  run(launch, plan, GradientSumsOf<X>{x, dy, mean}, partials);
}

// NOLINTBEGIN(bugprone-macro-parentheses): its arguments are types
#define SUMS_OF(X)                                                                                       \
  template void sum_moments(const Launch&, const ChannelPlan&, const X*, Moments<Computed<X>>*);         \
  template void sum_gradients(const Launch&, const ChannelPlan&, const X*, const X*, const Computed<X>*, \
                              GradientSums<Computed<X>>*)
// NOLINTEND(bugprone-macro-parentheses)
SUMS_OF(float);
SUMS_OF(double);
SUMS_OF(BFloat16);
SUMS_OF(__half);

}  // namespace onnx_train::cuda
