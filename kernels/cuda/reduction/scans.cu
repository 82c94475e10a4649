// CumSum, CumProd and LinearScan (kernels/geometry/indexing/scans.h). The threads of a line process its elements in
// turns; each turn is combined with the result of the previous turns.
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/scans.h"
#include "kernels/math/reducers.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// What a scan combines, in the order of the elements: start() changes nothing, load(at) is of an element, store(at,
// before, value) writes the result there from the value and what all before it make.

template <typename T>
struct SumOrProduct {
  using W = math::Wide<T>;
  const T* x;
  T* y;
  bool multiplies, exclusive;
  __device__ W start() const { return multiplies ? W{1} : W{0}; }
  __device__ W operator()(W a, W b) const { return multiplies ? a * b : a + b; }
  __device__ W load(int64_t at) const { return static_cast<W>(x[at]); }
  __device__ void store(int64_t at, W before, W value) const {
    y[at] = static_cast<T>(exclusive ? before : (*this)(before, value));
  }
};

struct AffineMap {
  double factor, term;
};

// The steps y -> a y + b, one after the other.
template <typename T>
struct AffineSteps {
  using W = AffineMap;
  const T *a, *b;
  T* y;
  double first;
  __device__ W start() const { return {1, 0}; }
  __device__ W operator()(W f, W g) const { return {f.factor * g.factor, g.factor * f.term + g.term}; }
  __device__ W load(int64_t at) const { return {static_cast<double>(a[at]), static_cast<double>(b[at])}; }
  __device__ void store(int64_t at, W before, W) const {
    y[at] = static_cast<T>(first == 0 ? before.term : before.factor * first + before.term);
  }
};

// Combines each lane's value with those of lower lanes.
template <typename W, typename Combine>
__device__ W scan_warp(W value, const Combine& combine) {
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

template <int kRowThreads, typename W, typename Combine>
__device__ Turn<W> take_turn(W value, W so_far, const Combine& combine) {
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

template <int kRowThreads, typename Combine>
__global__ void scan_lines(AxisView view, bool reverse, Combine combine) {
  using W = typename Combine::W;
  using Threads = RowThreads<kRowThreads>;
  if (Threads::row() >= view.lines()) return;
  const int64_t line = view.line(Threads::row()), size = view.size;
  W so_far = combine.start();
  for (int64_t first = 0; first < size; first += kRowThreads) {
    const int64_t i = first + Threads::first(), at = line + (reverse ? size - 1 - i : i) * view.inner;
    const W value = i < size ? combine.load(at) : combine.start();
    const Turn<W> turn = take_turn<kRowThreads>(value, so_far, combine);
    if (i < size) combine.store(at, turn.before, value);
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
          launch, "scan_lines", scan.x, [](auto threads) { return scan_lines<threads(), SumOrProduct<T>>; }, scan.x,
          scan.reverse, SumOrProduct<T>{launch.in<T>(0), launch.out<T>(), multiplies, scan.exclusive});
    };
  });
  return prepared;
}

Prepared prepare_linear_scan(const NodeSpec& spec) {
  const LinearScan scan = linear_scan_of(spec);
  if (spec.in_size(0) == 0) return {[](const Launch&) {}};
  return {dispatch_float(spec.out_type(), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return [=](const Launch& launch) {
      enqueue_lines<T>(
          launch, "scan_lines", scan.x, [](auto threads) { return scan_lines<threads(), AffineSteps<T>>; }, scan.x,
          scan.reverse, AffineSteps<T>{launch.in<T>(0), launch.in<T>(1), launch.out<T>(), scan.first});
    };
  })};
}

Prepared prepare_cum_sum(const NodeSpec& spec) { return prepare_cumulative(spec, false); }
Prepared prepare_cum_prod(const NodeSpec& spec) { return prepare_cumulative(spec, true); }

}  // namespace

std::vector<Kernel> scan_kernels() {
  return {
      {"CumSum", supports_cumulative, prepare_cum_sum},
      {"CumProd", supports_cumulative, prepare_cum_prod},
      {"LinearScan", supports_linear_scan, prepare_linear_scan, kDomain},
  };
}

}  // namespace onnx_train::cuda
