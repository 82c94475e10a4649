// LayerNormalization, RMSNormalization and their gradients; one warp or block per row. The gradients' bodies are in
// onnx_passes/functions. Elements are stored as X, Y, .. and computed as T.
#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/runtime.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/row_normalization.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
struct Statistics {
  T mean, inv_std;
};

// Rows of up to kMostKept elements are kept in registers. Calls run(KeptRow<..>()) with the threads and elements that
// fit rows of n elements, and returns whether there are any.
constexpr int kMostKept = 16 * static_cast<int>(kThreads);

template <typename F>
bool with_kept_row(int64_t n, const F& run) {
  constexpr int kWarp = gpu::kWarpSize, kBlock = static_cast<int>(kThreads);
  if (n > kMostKept) return false;
  if (n % kRowVector != 0) {  // rows begin at odd addresses
    n <= kWarp * 32 ? run(KeptRow<kWarp, 32, 1>()) : run(KeptRow<kBlock, 16, 1>());
  } else if (n <= kWarp * 8) {
    run(KeptRow<kWarp, 8>());
  } else if (n <= kWarp * 24) {
    run(KeptRow<kWarp, 24>());
  } else if (n <= kWarp * 32) {
    run(KeptRow<kWarp, 32>());
  } else if (n <= kBlock * 8) {
    run(KeptRow<kBlock, 8>());
  } else {
    run(KeptRow<kBlock, 16>());
  }
  return true;
}

// The statistics of a row in memory. The variance is the mean of the squared differences from the mean, in a second
// pass.
template <typename Threads, typename X, typename T = Computed<X>>
__device__ Statistics<T> statistics_in_memory(const NormalizedRows& rows, const X* x) {
  const T n = static_cast<T>(rows.n);
  T mean = 0, squares = 0;
  if (rows.centered) {
    for (int64_t i = Threads::first(); i < rows.n; i += Threads::kCount) mean += widened(x[i]);
    mean = Threads::merge(mean, Sum()) / n;
  }
  for (int64_t i = Threads::first(); i < rows.n; i += Threads::kCount) {
    const T d = widened(x[i]) - mean;
    squares += d * d;
  }
  const T variance = Threads::merge(squares, Sum()) / n;
  return {mean, static_cast<T>(rsqrt(variance + static_cast<T>(rows.epsilon)))};
}

// ---- Forward

// The operands of a run; absent ones are null. Mean and InvStdDev have their own type: double or float.
template <typename X, typename Y, typename T = Computed<X>>
struct Forward {
  const X* x;
  const T *scale, *bias;
  Y* y;
  void *mean, *inv_std;
  bool double_statistics;
};

template <typename T>
__device__ void store_statistic(void* output, bool is_double, int64_t row, T value) {
  if (!output) return;
  if (is_double) {
    static_cast<double*>(output)[row] = static_cast<double>(value);
  } else {
    static_cast<float*>(output)[row] = static_cast<float>(value);
  }
}

// Makes x - mean of a row's elements d, which threads keep, and returns the statistics as statistics_in_memory does.
// Elements after the end of the row are 0 before and after.
template <typename Kept, typename T>
__device__ Statistics<T> kept_statistics(const NormalizedRows& rows, T (&d)[Kept::kCount]) {
  using Threads = typename Kept::Threads;
  const T share = T{1} / static_cast<T>(rows.n);
  T mean = 0, squares = 0;
  if (rows.centered) {
    for (const T x : d) mean += x;
    mean = Threads::merge(mean, Sum()) * share;
    for (T& x : d) x -= mean;
    Kept::clear_rest(d, rows.n);
  }
  for (const T x : d) squares += x * x;
  const T variance = Threads::merge(squares, Sum()) * share;
  return {mean, static_cast<T>(rsqrt(variance + static_cast<T>(rows.epsilon)))};
}

// Blocks of kThreads on a multiprocessor, for which registers are left.
template <typename X, typename Y, typename Kept>
constexpr int normalizing_blocks() {
  constexpr bool kHalves = sizeof(X) == 2 && sizeof(Y) == 2;
  if (Kept::kCount <= 8) return 4;
  if (Kept::kOfVector == 1) return 1;
  if (Kept::kCount <= 16) return kHalves ? 3 : 2;
  return Kept::kCount <= 24 ? 2 : 1;
}
template <typename Kept>
constexpr int kDifferentiatingBlocks = Kept::kCount <= 8 ? 2 : 1;

// The rows of a thread. All threads of the grid walk over the rows.
template <typename Kept>
struct RowWalk {
  static constexpr int kRows = static_cast<int>(kThreads) / Kept::Threads::kCount;  // of a block at a time
  int64_t next = Kept::Threads::row();

  __device__ static int64_t step() { return int64_t{gridDim.x} * kRows; }
  template <typename X>
  __device__ void load_next(typename Kept::template Stored<X>* to, const X* x, const NormalizedRows& rows) const {
    if (next < rows.count) *to = Kept::load_all(x + next * rows.n, rows.n);
  }
};

// Rows of at most kRowThreads kKept elements are read once: a thread keeps its elements of a row, and the scales and
// biases of all. The next row's elements are in flight meanwhile.
template <typename X, typename Y, typename Kept>
__global__ void __launch_bounds__(kThreads, (normalizing_blocks<X, Y, Kept>()))
    normalize_kept_rows(NormalizedRows rows, const Fault* guard, Forward<X, Y> f) {
  using T = Computed<X>;
  if (stops(guard)) return;
  T scale[Kept::kCount], bias[Kept::kCount] = {};
  Kept::widen(Kept::load_all(f.scale, rows.n), scale);
  if (f.bias) Kept::widen(Kept::load_all(f.bias, rows.n), bias);
  RowWalk<Kept> walk;
  typename Kept::template Stored<X> next_x = {};
  walk.load_next(&next_x, f.x, rows);
  while (walk.next < rows.count) {
    T d[Kept::kCount];
    Kept::widen(next_x, d);
    walk.next += walk.step();
    walk.load_next(&next_x, f.x, rows);
    const int64_t row = walk.next - walk.step();
    const auto [mean, inv_std] = kept_statistics<Kept>(rows, d);
    for (int k = 0; k < Kept::kCount; k += Kept::kOfVector) {
      typename Kept::template Vector<Y> y;
      for (int e = 0; e < Kept::kOfVector; ++e) {
        y[e] = math::convert<Y>(d[k + e] * inv_std * scale[k + e] + bias[k + e]);
      }
      Kept::store_at(k, y, f.y + row * rows.n, rows.n);
    }
    if (Kept::Threads::first() != 0 || !(f.mean || f.inv_std)) continue;
    store_statistic(f.mean, f.double_statistics, row, mean);
    store_statistic(f.inv_std, f.double_statistics, row, inv_std);
  }
}

// Longer rows and float64 rows are read in each step.
template <typename X, typename Y, int kRowThreads>
__global__ void normalize_rows(NormalizedRows rows, const Fault* guard, Forward<X, Y> f) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (stops(guard) || row >= rows.count) return;
  const X* const x = f.x + row * rows.n;
  Y* const y = f.y + row * rows.n;
  const auto [mean, inv_std] = statistics_in_memory<Threads>(rows, x);
  for (int64_t i = Threads::first(); i < rows.n; i += kRowThreads) {
    const auto scaled = (widened(x[i]) - mean) * inv_std * f.scale[i];
    y[i] = math::convert<Y>(f.bias ? scaled + f.bias[i] : scaled);
  }
  if (Threads::first() != 0) return;
  store_statistic(f.mean, f.double_statistics, row, mean);
  store_statistic(f.inv_std, f.double_statistics, row, inv_std);
}

template <typename X, typename Y>
Prepared prepare_forward(const NodeSpec& spec, const NormalizedRows& rows) {
  using T = Computed<X>;
  const auto optional = [&](int i) { return i < spec.num_outputs() && spec.has_output(i); };
  const bool double_statistics =
      (optional(1) && spec.out_type(1) == DType::kDouble) || (optional(2) && spec.out_type(2) == DType::kDouble);
  const bool has_bias = rows.centered && spec.has_input(2);
  const int inputs = spec.num_inputs();
  const bool has_mean = optional(1), has_inv_std = optional(2);
  const int multiprocessors = num_multiprocessors();
  Prepared prepared;
  prepared.run = [=](const Launch& launch) {
    if (rows.count * rows.n == 0) return;
    const Forward<X, Y> f{launch.in<X>(0),
                          launch.in<T>(1),
                          has_bias ? launch.in<T>(2) : nullptr,
                          launch.out<Y>(),
                          has_mean ? launch.outputs[1] : nullptr,
                          has_inv_std ? launch.outputs[2] : nullptr,
                          double_statistics};
    const Fault* const guard = guard_of(launch, inputs, 1);
    if constexpr (std::is_same_v<T, float>) {
      const auto run_kept = [&]<typename Kept>(Kept) {
        const auto most_blocks = static_cast<unsigned>(multiprocessors * normalizing_blocks<X, Y, Kept>());
        enqueue(launch, "normalize_kept_rows", normalize_kept_rows<X, Y, Kept>,
                std::min(row_blocks<Kept::Threads::kCount>(rows.count), most_blocks), kThreads, 0, rows, guard, f);
      };
      if (with_kept_row(rows.n, run_kept)) return;
    }
    enqueue_rows(
        launch, "normalize_rows", rows.count, rows.n, true,
        [](auto threads) { return normalize_rows<X, Y, threads()>; }, rows, guard, f);
  };
  if (sizeof(X) == sizeof(Y)) prepared.in_place = {{0, 0}};
  return prepared;
}

// ---- Gradients: dx = (g - mean g - x̂ mean(g x̂)) inv_std with g = dy scale, where RMSNormalization omits mean g;
// dscale = Σ dy x̂ and dbias = Σ dy over all rows. With the epilogue "residual", an input is added to dx
// (kernels/lowering/fusion/fuse_products.cc).

// The operands of a run. Unwanted or absent ones are null. dx may be x, dy or the residual. The sums over the rows of
// each piece, [pieces][dscale, dbias][n], are null if neither is wanted.
template <typename X, typename DX>
struct Gradient {
  using T = Computed<X>;
  const X* x;
  const T* scale;
  const X* dy;
  const DX* residual;
  DX* dx;
  T* sums;

  __device__ void store(int64_t i, T value) const {
    dx[i] = math::convert<DX>(residual ? value + widened(residual[i]) : value);
  }
};

// Writes Σ values over the rows of threads of the block.
template <typename Kept, typename T>
__device__ void add_rows_of_block(const T (&values)[Kept::kCount], int64_t n, T* to) {
  constexpr int kRows = RowWalk<Kept>::kRows, kBlock = static_cast<int>(kThreads);
  GPU_SHARED(scratch, T[kRows][kBlock / kRows * Kept::kCount]);
  T* const own = scratch[threadIdx.x / Kept::Threads::kCount] + Kept::first();
  __syncthreads();  // `scratch` may have been read
  for (int k = 0; k < Kept::kCount; ++k) own[Kept::place(k)] = values[k];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < n; column += kBlock) {
    T sum = scratch[0][column];
    for (int row = 1; row < kRows; ++row) sum += scratch[row][column];
    to[column] = sum;
  }
}

// Rows of at most kRowThreads kKept elements are read once: a thread keeps its elements of a row, and the sums of the
// same columns over all of its rows. The next row's elements are in flight meanwhile.
template <typename X, typename DX, typename Kept>
__global__ void __launch_bounds__(kThreads, kDifferentiatingBlocks<Kept>)
    differentiate_in_one_pass(NormalizedRows rows, const Fault* guard, Gradient<X, DX> gradient) {
  using T = Computed<X>;
  constexpr int kKept = Kept::kCount;
  const bool writes = gradient.dx && !stops(guard);
  const T share = T{1} / static_cast<T>(rows.n);
  T dscale[kKept] = {}, dbias[kKept] = {};
  RowWalk<Kept> walk;
  typename Kept::template Stored<X> next_x = {}, next_dy = {};
  walk.load_next(&next_x, gradient.x, rows);
  walk.load_next(&next_dy, gradient.dy, rows);
  while (walk.next < rows.count) {
    const int64_t row = walk.next;
    T x[kKept], g[kKept];  // x is x̂ from the statistics on, g is dy and then dy scale
    Kept::widen(next_x, x);
    Kept::widen(next_dy, g);
    typename Kept::template Stored<DX> residual = {};
    if (gradient.residual) residual = Kept::load_all(gradient.residual + row * rows.n, rows.n);
    walk.next += walk.step();
    walk.load_next(&next_x, gradient.x, rows);
    walk.load_next(&next_dy, gradient.dy, rows);
    const T inv_std = kept_statistics<Kept>(rows, x).inv_std;
    GradientSums<T> along{};
    for (int k = 0; k < kKept; k += Kept::kOfVector) {
      const auto scale = Kept::load_at(k, gradient.scale, rows.n);
      for (int e = k; e < k + Kept::kOfVector; ++e) {
        x[e] *= inv_std;
        dscale[e] += g[e] * x[e];
        dbias[e] += g[e];
        g[e] *= scale[e - k];
        along = GradientSums<T>::merge(along, {g[e], g[e] * x[e]});
      }
    }
    if (!gradient.dx) continue;
    along = Kept::Threads::merge(along, GradientSums<T>::merge);
    if (!writes) continue;
    const T mean_g = rows.centered ? along.first * share : T{0}, mean_along = along.second * share;
    for (int k = 0; k < kKept; k += Kept::kOfVector) {
      typename Kept::template Vector<DX> dx;
      for (int e = 0; e < Kept::kOfVector; ++e) {
        const T own = (g[k + e] - mean_g - x[k + e] * mean_along) * inv_std;
        dx[e] = math::convert<DX>(own + widened(residual[k + e]));
      }
      Kept::store_at(k, dx, gradient.dx + row * rows.n, rows.n);
    }
  }
  if (!gradient.sums) return;
  T* const sums = gradient.sums + int64_t{blockIdx.x} * 2 * rows.n;
  add_rows_of_block<Kept>(dscale, rows.n, sums);
  add_rows_of_block<Kept>(dbias, rows.n, sums + rows.n);
}

// Longer rows and float64 rows are read by each of the following kernels.

template <typename X, int kRowThreads, typename T = Computed<X>>
__global__ void find_statistics(NormalizedRows rows, const X* x, Statistics<T>* statistics) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (row >= rows.count) return;
  const Statistics<T> found = statistics_in_memory<Threads>(rows, x + row * rows.n);
  if (Threads::first() == 0) statistics[row] = found;
}

template <typename X, typename DX, int kRowThreads, typename T = Computed<X>>
__global__ void differentiate_rows(NormalizedRows rows, const Fault* guard, Gradient<X, DX> gradient,
                                   const Statistics<T>* statistics) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (stops(guard) || row >= rows.count) return;
  const X *const x = gradient.x + row * rows.n, *const dy = gradient.dy + row * rows.n;
  const T* const scale = gradient.scale;
  const auto [mean, inv_std] = statistics[row];
  T sum = 0, along = 0;
  for (int64_t i = Threads::first(); i < rows.n; i += kRowThreads) {
    const T g = widened(dy[i]) * scale[i];
    sum += g;
    along += g * (widened(x[i]) - mean) * inv_std;
  }
  const T n = static_cast<T>(rows.n);
  const T mean_g = rows.centered ? Threads::merge(sum, Sum()) / n : T{0};
  const T mean_along = Threads::merge(along, Sum()) / n;
  for (int64_t i = Threads::first(); i < rows.n; i += kRowThreads) {
    const T along_x = (widened(x[i]) - mean) * inv_std * mean_along;
    gradient.store(row * rows.n + i, (widened(dy[i]) * scale[i] - mean_g - along_x) * inv_std);
  }
}

constexpr int kColumns = 32, kColumnRows = static_cast<int>(kThreads) / kColumns;

// Sums the rows of piece y of the grid.
template <typename X, typename T = Computed<X>>
__global__ void sum_columns(NormalizedRows rows, int64_t rows_of_piece, const X* x, const X* dy,
                            const Statistics<T>* statistics, T* sums) {
  GPU_SHARED(scales, T[kColumnRows][kColumns]);
  GPU_SHARED(biases, T[kColumnRows][kColumns]);
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const int64_t begin = blockIdx.y * rows_of_piece, end = std::min(begin + rows_of_piece, rows.count);
  T dscale = 0, dbias = 0;
  for (int64_t row = begin + threadIdx.y; column < rows.n && row < end; row += kColumnRows) {
    const T d = widened(dy[row * rows.n + column]);
    dscale += d * (widened(x[row * rows.n + column]) - statistics[row].mean) * statistics[row].inv_std;
    dbias += d;
  }
  scales[threadIdx.y][threadIdx.x] = dscale;
  biases[threadIdx.y][threadIdx.x] = dbias;
  __syncthreads();
  if (threadIdx.y != 0 || column >= rows.n) return;
  for (int r = 1; r < kColumnRows; ++r) {
    dscale += scales[r][threadIdx.x];
    dbias += biases[r][threadIdx.x];
  }
  sums += int64_t{blockIdx.y} * 2 * rows.n + column;
  sums[0] = dscale;
  sums[rows.n] = dbias;
}

// Adds the sums of all pieces; unwanted outputs are null. A row of threads adds every kPieceRows-th piece.
constexpr int kPieceRows = 32;

template <typename T>
__global__ void add_pieces(int64_t n, int64_t pieces, const T* sums, T* dscale, T* dbias) {
  GPU_SHARED(scratch, GradientSums<T>[kPieceRows][kColumns]);
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  GradientSums<T> mine{};
  for (int64_t p = threadIdx.y; column < n && p < pieces; p += kPieceRows) {
    mine = GradientSums<T>::merge(mine, {sums[p * 2 * n + column], sums[p * 2 * n + n + column]});
  }
  scratch[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  for (int row = 1; row < kPieceRows; ++row) mine = GradientSums<T>::merge(mine, scratch[row][threadIdx.x]);
  if (dscale) dscale[column] = mine.first;
  if (dbias) dbias[column] = mine.second;
}

template <typename X, typename DX>
struct Backward {
  using T = Computed<X>;
  NormalizedRows rows;
  int64_t pieces, rows_of_piece;
  bool has_dx, has_dscale, has_dbias;
  int residual;  // the input, or -1

  Backward(const NodeSpec& spec, const NormalizedRows& r) : rows(r) {
    int64_t least_rows = 64, most_pieces = 64;
    if constexpr (std::is_same_v<T, float>) {
      // As many blocks as the device holds at a time, each with a few rows.
      with_kept_row(rows.n, [&]<typename Kept>(Kept) {
        least_rows = 2 * RowWalk<Kept>::kRows;
        most_pieces = num_multiprocessors() * kDifferentiatingBlocks<Kept>;
      });
    }
    pieces = std::clamp<int64_t>(rows.count / least_rows, 1, most_pieces);
    rows_of_piece = (rows.count + pieces - 1) / pieces;
    has_dx = spec.has_output(0);
    has_dscale = spec.num_outputs() > 1 && spec.has_output(1);
    has_dbias = spec.num_outputs() > 2 && spec.has_output(2);
    residual = input_at(spec.node(), "residual");
  }
  bool in_one_pass() const { return std::is_same_v<T, float> && rows.n <= kMostKept; }
  bool has_sums() const { return has_dscale || has_dbias; }
  // The workspace holds the sums of all pieces, then the statistics of all rows.
  size_t workspace() const {
    const int64_t statistics = in_one_pass() ? 0 : rows.count;
    return static_cast<size_t>(statistics) * sizeof(Statistics<T>) + static_cast<size_t>(num_sums()) * sizeof(T);
  }
  int64_t num_sums() const { return has_sums() ? (pieces * 2 * rows.n + 1) / 2 * 2 : 0; }

  void run(const Launch& launch) const {
    if (rows.n == 0) return;
    T* const sums = launch.scratch<T>();
    const Gradient<X, DX> gradient{launch.in<X>(0),
                                   launch.in<T>(1),
                                   launch.in<X>(2),
                                   residual >= 0 ? launch.in<DX>(residual) : nullptr,
                                   has_dx ? launch.out<DX>() : nullptr,
                                   has_sums() ? sums : nullptr};
    const Fault* const guard = guard_of(launch, residual >= 0 ? residual + 1 : 3, 1);
    if (in_one_pass()) {
      if constexpr (std::is_same_v<T, float>) run_in_one_pass(launch, guard, gradient);
    } else {
      run_in_passes(launch, guard, gradient, reinterpret_cast<Statistics<T>*>(sums + num_sums()));
    }
    if (!has_sums()) return;
    enqueue(launch, "add_pieces", add_pieces<T>, column_blocks(), dim3(kColumns, kPieceRows), 0, rows.n, pieces, sums,
            has_dscale ? launch.out<T>(1) : nullptr, has_dbias ? launch.out<T>(2) : nullptr);
  }

 private:
  unsigned column_blocks() const { return static_cast<unsigned>((rows.n + kColumns - 1) / kColumns); }

  void run_in_one_pass(const Launch& launch, const Fault* guard, const Gradient<X, DX>& gradient) const {
    with_kept_row(rows.n, [&]<typename Kept>(Kept) {
      enqueue(launch, "differentiate_in_one_pass", differentiate_in_one_pass<X, DX, Kept>,
              static_cast<unsigned>(pieces), kThreads, 0, rows, guard, gradient);
    });
  }

  void run_in_passes(const Launch& launch, const Fault* guard, const Gradient<X, DX>& gradient,
                     Statistics<T>* statistics) const {
    enqueue_rows(
        launch, "find_statistics", rows.count, rows.n, true, [](auto threads) { return find_statistics<X, threads()>; },
        rows, gradient.x, statistics);
    if (has_sums()) {  // dx may overwrite x or dy
      enqueue(launch, "sum_columns", sum_columns<X>, dim3(column_blocks(), static_cast<unsigned>(pieces)),
              dim3(kColumns, kColumnRows), 0, rows, rows_of_piece, gradient.x, gradient.dy, statistics, gradient.sums);
    }
    if (!has_dx) return;
    enqueue_rows(
        launch, "differentiate_rows", rows.count, rows.n, true,
        [](auto threads) { return differentiate_rows<X, DX, threads()>; }, rows, guard, gradient, statistics);
  }
};

template <typename X, typename DX>
Prepared prepare_backward(const NodeSpec& spec, const NormalizedRows& rows) {
  const Backward<X, DX> backward(spec, rows);
  std::vector<InPlace> in_place;
  if (backward.residual >= 0) in_place = {{0, backward.residual}};
  if (sizeof(X) == sizeof(DX)) in_place.insert(in_place.end(), {{0, 2}, {0, 0}});
  return {[=](const Launch& launch) { backward.run(launch); }, backward.workspace(), std::move(in_place)};
}

// ---- Rows of the table

// The type in which elements of type `stored` are computed.
DType computed(DType stored) { return is_half(stored) ? DType::kFloat : stored; }

bool supports_forward(const NodeSpec& spec, bool centered) {
  const auto is_statistic = [&](int i) {
    return i >= spec.num_outputs() || !spec.has_output(i) || is_float_or_double(spec.out_type(i));
  };
  for (int i = 1; i < std::min(3, spec.num_inputs()); ++i) {
    if (spec.has_input(i) && spec.in_type(i) != computed(spec.in_type())) return false;
  }
  return is_stored_pair(spec.in_type(), spec.out_type()) &&
         NormalizedRows(spec, centered).has_parameters_of_rows(spec) && is_statistic(1) && is_statistic(2);
}

Kernel forward_kernel(const char* op, bool centered, const char* domain) {
  return {op, [=](const NodeSpec& spec) { return supports_forward(spec, centered); },
          [=](const NodeSpec& spec) {
            return dispatch_stored_pair(spec.in_type(), spec.out_type(), [&]<typename X, typename Y>(X, Y) {
              return prepare_forward<X, Y>(spec, NormalizedRows(spec, centered));
            });
          },
          domain};
}

// x and dy have one type, which is also the type of an absent dx.
DType type_of_dx(const NodeSpec& spec) { return spec.has_output(0) ? spec.out_type() : spec.in_type(); }

Kernel backward_kernel(const char* op, bool centered) {
  const Kernel row = {
      op,
      [=](const NodeSpec& spec) {
        const NormalizedRows rows(spec, centered);
        const int residual = input_at(spec.node(), "residual");
        if (residual >= 0 && !(spec.has_output(0) && spec.in_type(residual) == spec.out_type() &&
                               spec.in_shape(residual) == spec.out_shape()))
          return false;
        return is_stored_pair(spec.in_type(), type_of_dx(spec)) && spec.in_type(1) == computed(spec.in_type()) &&
               spec.in_type(2) == spec.in_type() && spec.in_size(1) == rows.n && spec.in_shape(2) == spec.in_shape(0);
      },
      [=](const NodeSpec& spec) {
        return dispatch_stored_pair(spec.in_type(), type_of_dx(spec), [&]<typename X, typename DX>(X, DX) {
          return prepare_backward<X, DX>(spec, NormalizedRows(spec, centered));
        });
      },
      kDomain};
  return row.with_epilogues({"", "residual"});
}

}  // namespace

std::vector<Kernel> row_normalization_kernels() {
  return {
      forward_kernel("LayerNormalization", true, ""),      forward_kernel("RMSNormalization", false, ""),
      forward_kernel("LayerNormalization", true, kDomain), forward_kernel("RMSNormalization", false, kDomain),
      backward_kernel("LayerNormalizationGrad", true),     backward_kernel("RMSNormalizationGrad", false),
  };
}

}  // namespace onnx_train::cuda
