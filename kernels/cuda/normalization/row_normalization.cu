// LayerNormalization, RMSNormalization and their gradients; one warp or block per row. The gradients' bodies are in
// onnx_passes/functions. Elements are stored as X, Y, .. and computed as T.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/normalization/channels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/row_normalization.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
struct Statistics {
  T mean, inv_std;
};

// The variance is the mean of the squared differences from the mean, in a second pass. for_each(f) calls f for the
// calling thread's elements of a row.
template <typename Threads, typename T, typename F>
__device__ Statistics<T> row_statistics(const NormalizedRows& rows, const F& for_each) {
  const T n = static_cast<T>(rows.n);
  T mean = 0;
  if (rows.centered) {
    for_each([&](T x) { mean += x; });
    mean = Threads::merge(mean, Sum()) / n;
  }
  T squares = 0;
  for_each([&](T x) { squares += (x - mean) * (x - mean); });
  const T variance = Threads::merge(squares, Sum()) / n;
  return {mean, static_cast<T>(rsqrt(variance + static_cast<T>(rows.epsilon)))};
}

// The statistics of a row in memory.
template <typename Threads, typename X, typename T = Computed<X>>
__device__ Statistics<T> statistics_in_memory(const NormalizedRows& rows, const X* x) {
  return row_statistics<Threads, T>(rows, [&](const auto& f) {
    for (int64_t i = Threads::first(); i < rows.n; i += Threads::kCount) f(widened(x[i]));
  });
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

// Rows of at most kRowThreads kKept elements are read once.
template <typename X, typename Y, int kRowThreads, int kKept>
__global__ void normalize_kept_rows(NormalizedRows rows, const Fault* guard, Forward<X, Y> f) {
  using Threads = RowThreads<kRowThreads>;
  using Kept = KeptRow<kRowThreads, kKept>;
  using T = Computed<X>;
  const int64_t row = Threads::row();
  if (stops(guard) || row >= rows.count) return;
  T x[kKept];
  Kept::load_all(x, f.x + row * rows.n, rows.n);
  const auto [mean, inv_std] =
      row_statistics<Threads, T>(rows, [&](const auto& add) { Kept::for_each(rows.n, [&](int k) { add(x[k]); }); });
  // Scales and biases are read late, so that they take few registers.
  for (int k = 0; k < kKept; k += Kept::kVector) {
    const auto scale = Kept::load_at(k, f.scale, rows.n);
    typename Kept::template Vector<T> bias = {};
    if (f.bias) bias = Kept::load_at(k, f.bias, rows.n);
    typename Kept::template Vector<Y> y;
    for (int e = 0; e < Kept::kVector; ++e) {
      y[e] = math::convert<Y>((x[k + e] - mean) * inv_std * scale[e] + bias[e]);
    }
    Kept::store_at(k, y, f.y + row * rows.n, rows.n);
  }
  if (Threads::first() != 0) return;
  store_statistic(f.mean, f.double_statistics, row, mean);
  store_statistic(f.inv_std, f.double_statistics, row, inv_std);
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
    const auto run_kept = [&]<int kRowThreads, int kKept>(KeptRow<kRowThreads, kKept>) {
      enqueue(launch, "normalize_kept_rows", normalize_kept_rows<X, Y, kRowThreads, kKept>,
              row_blocks<kRowThreads>(rows.count), kThreads, 0, rows, guard, f);
    };
    constexpr int kWarp = gpu::kWarpSize, kBlock = static_cast<int>(kThreads);
    if constexpr (std::is_same_v<T, float>) {
      if (rows.n <= kWarp * 8) return run_kept(KeptRow<kWarp, 8>());
      if (rows.n <= kWarp * 32) return run_kept(KeptRow<kWarp, 32>());
      if (rows.n <= kBlock * 16) return run_kept(KeptRow<kBlock, 16>());
    }
    enqueue_rows(
        launch, "normalize_rows", rows.count, rows.n, true,
        [](auto threads) { return normalize_rows<X, Y, threads()>; }, rows, guard, f);
  };
  if (sizeof(X) == sizeof(Y)) prepared.in_place = {{0, 0}};
  return prepared;
}

// ---- Gradients: dx = (g - mean g - x̂ mean(g x̂)) inv_std with g = dy scale, where RMSNormalization omits mean g;
// dscale = Σ dy x̂ and dbias = Σ dy over all rows. With the attribute `residual`, an input is added to dx
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

// Writes to[place of k] = Σ values[k] over the rows of threads of the block.
template <int kRowThreads, int kKept, typename T>
__device__ void add_rows_of_block(const T (&values)[kKept], int64_t n, T* to) {
  using Kept = KeptRow<kRowThreads, kKept>;
  GPU_SHARED(scratch, T[kThreads]);
  for (int k = 0; k < kKept; ++k) {
    T sum = values[k];
    if constexpr (kRowThreads < kThreads) {
      scratch[threadIdx.x] = sum;
      __syncthreads();
      if (threadIdx.x < kRowThreads) {
        for (unsigned other = kRowThreads; other < kThreads; other += kRowThreads) sum += scratch[threadIdx.x + other];
      }
      __syncthreads();
    }
    if (threadIdx.x < kRowThreads && Kept::has(k, n)) to[Kept::first() + Kept::place(k)] = sum;
  }
}

// Rows of at most kRowThreads kKept elements are read once: a thread keeps kKept elements of a row, and the sums of the
// same columns over all rows of its block's piece. Without bounds, ptxas would take registers for a block less
// per multiprocessor.
template <typename X, typename DX, int kRowThreads, int kKept>
__global__ void __launch_bounds__(kThreads, kKept > 8 ? 2 : 3)
    differentiate_in_one_pass(NormalizedRows rows, int64_t rows_of_piece, const Fault* guard,
                              Gradient<X, DX> gradient) {
  using T = Computed<X>;
  using Threads = RowThreads<kRowThreads>;
  const bool writes = gradient.dx && !stops(guard);
  const int64_t begin = blockIdx.x * rows_of_piece, end = std::min(begin + rows_of_piece, rows.count);
  const T n = static_cast<T>(rows.n);
  using Kept = KeptRow<kRowThreads, kKept>;
  T scale[kKept], dscale[kKept] = {}, dbias[kKept] = {};
  Kept::load_all(scale, gradient.scale, rows.n);
  for (int64_t row = begin + threadIdx.x / kRowThreads; row < end; row += kThreads / kRowThreads) {
    T x[kKept], dy[kKept];  // x is later x̂
    Kept::load_all(x, gradient.x + row * rows.n, rows.n);
    Kept::load_all(dy, gradient.dy + row * rows.n, rows.n);
    const auto [mean, inv_std] =
        row_statistics<Threads, T>(rows, [&](const auto& f) { Kept::for_each(rows.n, [&](int k) { f(x[k]); }); });
    GradientSums<T> along{};
    Kept::for_each(rows.n, [&, mean = mean, inv_std = inv_std](int k) {
      x[k] = (x[k] - mean) * inv_std;
      const T g = dy[k] * scale[k];
      along = GradientSums<T>::merge(along, {g, g * x[k]});
      dscale[k] += dy[k] * x[k];
      dbias[k] += dy[k];
    });
    if (!gradient.dx) continue;
    along = Threads::merge(along, GradientSums<T>::merge);
    if (!writes) continue;
    const T mean_g = rows.centered ? along.first / n : T{0}, mean_along = along.second / n;
    for (int k = 0; k < kKept; k += Kept::kVector) {
      typename Kept::template Vector<DX> dx = {};
      if (gradient.residual) dx = Kept::load_at(k, gradient.residual + row * rows.n, rows.n);
      for (int e = 0; e < Kept::kVector; ++e) {
        const T own = (dy[k + e] * scale[k + e] - mean_g - x[k + e] * mean_along) * inv_std;
        dx[e] = math::convert<DX>(gradient.residual ? own + widened(dx[e]) : own);
      }
      Kept::store_at(k, dx, gradient.dx + row * rows.n, rows.n);
    }
  }
  if (!gradient.sums) return;
  T* const sums = gradient.sums + int64_t{blockIdx.x} * 2 * rows.n;
  add_rows_of_block<kRowThreads>(dscale, rows.n, sums);
  add_rows_of_block<kRowThreads>(dbias, rows.n, sums + rows.n);
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

// Elements of a row per thread, if a warp has the row and if a block has it.
constexpr int kOfWarp = 8, kOfBlock = 4, kMostOfBlock = 16;

template <typename X, typename DX>
struct Backward {
  using T = Computed<X>;
  NormalizedRows rows;
  int64_t pieces, rows_of_piece;
  bool has_dx, has_dscale, has_dbias, has_residual;

  Backward(const NodeSpec& spec, const NormalizedRows& r) : rows(r) {
    const int64_t least_rows = !in_one_pass() || rows.n <= kOfWarp * gpu::kWarpSize ? 64 : 8;
    // A block waits for each of its rows, so there are as many blocks as a large GPU holds.
    const int64_t most_pieces = in_one_pass() ? 1024 : 64;
    pieces = std::clamp<int64_t>(rows.count / least_rows, 1, most_pieces);
    rows_of_piece = (rows.count + pieces - 1) / pieces;
    has_dx = spec.has_output(0);
    has_dscale = spec.num_outputs() > 1 && spec.has_output(1);
    has_dbias = spec.num_outputs() > 2 && spec.has_output(2);
    has_residual = spec.node().attr("residual", 0) != 0;
  }
  bool in_one_pass() const { return std::is_same_v<T, float> && rows.n <= int64_t{kMostOfBlock} * kThreads; }
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
                                   has_residual ? launch.in<DX>(3) : nullptr,
                                   has_dx ? launch.out<DX>() : nullptr,
                                   has_sums() ? sums : nullptr};
    const Fault* const guard = guard_of(launch, has_residual ? 4 : 3, 1);
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
    constexpr int kBlock = static_cast<int>(kThreads);
    const auto kernel = rows.n <= kOfWarp * gpu::kWarpSize ? differentiate_in_one_pass<X, DX, gpu::kWarpSize, kOfWarp>
                        : rows.n <= kOfBlock * kBlock      ? differentiate_in_one_pass<X, DX, kBlock, kOfBlock>
                                                           : differentiate_in_one_pass<X, DX, kBlock, kMostOfBlock>;
    enqueue(launch, "differentiate_in_one_pass", kernel, static_cast<unsigned>(pieces), kThreads, 0, rows,
            rows_of_piece, guard, gradient);
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
  if (backward.has_residual) in_place = {{0, 3}};
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
  return {op,
          [=](const NodeSpec& spec) {
            const NormalizedRows rows(spec, centered);
            const bool adds = spec.node().attr("residual", 0) != 0;
            if (adds && !(spec.has_input(3) && spec.has_output(0) && spec.in_type(3) == spec.out_type() &&
                          spec.in_shape(3) == spec.out_shape()))
              return false;
            return is_stored_pair(spec.in_type(), type_of_dx(spec)) && spec.in_type(1) == computed(spec.in_type()) &&
                   spec.in_type(2) == spec.in_type() && spec.in_size(1) == rows.n &&
                   spec.in_shape(2) == spec.in_shape(0);
          },
          [=](const NodeSpec& spec) {
            return dispatch_stored_pair(spec.in_type(), type_of_dx(spec), [&]<typename X, typename DX>(X, DX) {
              return prepare_backward<X, DX>(spec, NormalizedRows(spec, centered));
            });
          },
          kDomain};
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
