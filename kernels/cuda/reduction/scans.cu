// CumSum and CumProd (kernels/geometry/indexing/scans.h). The threads of a line process its elements in turns; each
// turn is combined with the result of the previous turns.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"
#include "kernels/math/reducers.h"

namespace onnx_train::cuda {
namespace {

template <typename W>
struct SumOrProduct {
  bool multiplies;
  __device__ W start() const { return multiplies ? W{1} : W{0}; }
  __device__ W operator()(W a, W b) const { return multiplies ? a * b : a + b; }
};

// Combines each lane's value with those of lower lanes.
template <typename W>
__device__ W scan_warp(W value, const SumOrProduct<W>& combine) {
  const unsigned lane = threadIdx.x % gpu::kWarpSize;
  for (unsigned distance = 1; distance < gpu::kWarpSize; distance *= 2) {
    const W before =
        exchange_words(value, [=](unsigned word) { return __shfl_up_sync(gpu::kAllLanes, word, distance); });
    if (lane >= distance) value = combine(before, value);
  }
  return value;
}

// `before` combines `so_far` with the values of the row's earlier threads, `all` with the values of all its threads.
template <typename W>
struct Turn {
  W before, all;
};

template <int kRowThreads, typename W>
__device__ Turn<W> take_turn(W value, W so_far, const SumOrProduct<W>& combine) {
  if constexpr (kRowThreads == 1) {
    return {so_far, combine(so_far, value)};
  } else {
    const unsigned lane = threadIdx.x % gpu::kWarpSize;
    const W scanned = scan_warp(value, combine);
    const W shifted = exchange_words(scanned, [](unsigned word) { return __shfl_up_sync(gpu::kAllLanes, word, 1); });
    const W last =
        exchange_words(scanned, [](unsigned word) { return __shfl_sync(gpu::kAllLanes, word, gpu::kWarpSize - 1); });
    W before = so_far, all = so_far;
    if constexpr (kRowThreads > gpu::kWarpSize) {
      constexpr unsigned kWarps = kRowThreads / gpu::kWarpSize;
      GPU_SHARED(warps, W[kWarps]);
      const unsigned warp = threadIdx.x / gpu::kWarpSize;
      __syncthreads();  // `warps` of the previous turn has been read
      if (lane == 0) warps[warp] = last;
      __syncthreads();
      for (unsigned w = 0; w < kWarps; ++w) {
        if (w < warp) before = combine(before, warps[w]);
        all = combine(all, warps[w]);
      }
    } else {
      all = combine(so_far, last);
    }
    return {lane == 0 ? before : combine(before, shifted), all};
  }
}

template <int kRowThreads, typename T>
__global__ void scan_lines(Cumulative scan, SumOrProduct<math::Wide<T>> combine, const T* __restrict__ x, T* y) {
  using W = math::Wide<T>;
  using Threads = RowThreads<kRowThreads>;
  if (Threads::row() >= scan.x.lines()) return;
  const int64_t line = scan.x.line(Threads::row()), size = scan.x.size;
  W so_far = combine.start();
  for (int64_t first = 0; first < size; first += kRowThreads) {
    const int64_t i = first + Threads::first(), at = line + (scan.reverse ? size - 1 - i : i) * scan.x.inner;
    const W value = i < size ? static_cast<W>(x[at]) : combine.start();
    const Turn<W> turn = take_turn<kRowThreads>(value, so_far, combine);
    if (i < size) y[at] = static_cast<T>(scan.exclusive ? turn.before : combine(turn.before, value));
    so_far = turn.all;
  }
}

Prepared prepare_cumulative(const NodeSpec& spec, bool multiplies) {
  const Cumulative scan = cumulative_of(spec);
  Prepared prepared;
  if (spec.in_size(0) == 0) return {[](const Launch&) {}};
  prepared.run = dispatch_numeric(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      enqueue_lines<T>(
          launch, "scan_lines", scan.x, [](auto threads) { return scan_lines<threads(), T>; }, scan,
          SumOrProduct<math::Wide<T>>{multiplies}, launch.in<T>(0), launch.out<T>());
    };
  });
  return prepared;
}

Prepared prepare_cum_sum(const NodeSpec& spec) { return prepare_cumulative(spec, false); }
Prepared prepare_cum_prod(const NodeSpec& spec) { return prepare_cumulative(spec, true); }

}  // namespace

std::vector<Kernel> scan_kernels() {
  return {
      {"CumSum", supports_cumulative, prepare_cum_sum},
      {"CumProd", supports_cumulative, prepare_cum_prod},
  };
}

}  // namespace onnx_train::cuda
