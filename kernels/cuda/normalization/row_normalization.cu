// LayerNormalization, RMSNormalization and their gradients, a row per warp or block. The bodies of the gradients are in
// onnx_passes/functions. X, Y, .. are the types in which elements are stored; T, in which they are computed.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/row_normalization.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
struct Sum {
  __device__ T operator()(T a, T b) const { return a + b; }
};

template <typename T>
struct Statistics {
  T mean, inv_std;
};

// The variance is the mean of the squared differences from the mean, in a second pass.
template <typename Threads, int kRowThreads, typename X, typename T = Computed<X>>
__device__ Statistics<T> row_statistics(bool centered, const X* x, int64_t n, double epsilon) {
  T mean = 0;
  if (centered) {
    for (int64_t i = Threads::first(); i < n; i += kRowThreads) mean += widened(x[i]);
    mean = Threads::merge(mean, Sum<T>()) / static_cast<T>(n);
  }
  T squares = 0;
  for (int64_t i = Threads::first(); i < n; i += kRowThreads) {
    const T distance = widened(x[i]) - mean;
    squares += distance * distance;
  }
  const T variance = Threads::merge(squares, Sum<T>()) / static_cast<T>(n);
  return {mean, static_cast<T>(1 / std::sqrt(static_cast<double>(variance) + epsilon))};
}

// ---- Forward

// The operands of a run; a pointer is null where the node has no such input or output. Mean and InvStdDev have a type
// of their own: double or float.
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

template <typename X, typename Y, int kRowThreads>
__global__ void normalize_rows(NormalizedRows rows, const Fault* guard, Forward<X, Y> f) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (stops(guard) || row >= rows.count) return;
  const X* const x = f.x + row * rows.n;
  Y* const y = f.y + row * rows.n;
  const auto [mean, inv_std] = row_statistics<Threads, kRowThreads>(rows.centered, x, rows.n, rows.epsilon);
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
    dispatch_row_threads(rows.count, rows.n, true, [&]<int kRowThreads>(std::integral_constant<int, kRowThreads>) {
      enqueue(launch, "normalize_rows", normalize_rows<X, Y, kRowThreads>, row_blocks<kRowThreads>(rows.count),
              kThreads, 0, rows, guard_of(launch, inputs, 1), f);
    });
  };
  if (sizeof(X) == sizeof(Y)) prepared.in_place = {{0, 0}};
  return prepared;
}

// ---- Gradients

template <typename X, int kRowThreads, typename T = Computed<X>>
__global__ void find_statistics(NormalizedRows rows, const X* x, Statistics<T>* statistics) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (row >= rows.count) return;
  const Statistics<T> found =
      row_statistics<Threads, kRowThreads>(rows.centered, x + row * rows.n, rows.n, rows.epsilon);
  if (Threads::first() == 0) statistics[row] = found;
}

// dx = (g - mean g - x̂ mean(g x̂)) inv_std, where g = dy scale; without the mean of g for RMSNormalization. dx may be x
// or dy.
template <typename X, typename DX, int kRowThreads, typename T = Computed<X>>
__global__ void differentiate_rows(NormalizedRows rows, const Fault* guard, const X* x, const T* scale, const X* dy,
                                   const Statistics<T>* statistics, DX* dx) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t row = Threads::row();
  if (stops(guard) || row >= rows.count) return;
  x += row * rows.n;
  dy += row * rows.n;
  dx += row * rows.n;
  const auto [mean, inv_std] = statistics[row];
  T sum = 0, along = 0;
  for (int64_t i = Threads::first(); i < rows.n; i += kRowThreads) {
    const T g = widened(dy[i]) * scale[i];
    sum += g;
    along += g * (widened(x[i]) - mean) * inv_std;
  }
  const T n = static_cast<T>(rows.n);
  const T mean_g = rows.centered ? Threads::merge(sum, Sum<T>()) / n : T{0};
  const T mean_along = Threads::merge(along, Sum<T>()) / n;
  for (int64_t i = Threads::first(); i < rows.n; i += kRowThreads) {
    const T along_x = (widened(x[i]) - mean) * inv_std * mean_along;
    dx[i] = math::convert<DX>((widened(dy[i]) * scale[i] - mean_g - along_x) * inv_std);
  }
}

constexpr int kColumns = 32, kColumnRows = static_cast<int>(kThreads) / kColumns;

// The sums of dscale = Σ dy x̂ and dbias = Σ dy over the rows of piece y of the grid: sums[piece][2][n].
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

// Adds the sums of all pieces; null for an output that is not wanted.
template <typename T>
__global__ void add_pieces(int64_t n, int64_t pieces, const T* sums, T* dscale, T* dbias) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  T scale = 0, bias = 0;
  for (int64_t p = 0; p < pieces; ++p) {
    scale += sums[p * 2 * n + i];
    bias += sums[p * 2 * n + n + i];
  }
  if (dscale) dscale[i] = scale;
  if (dbias) dbias[i] = bias;
}

template <typename X, typename DX>
struct Backward {
  using T = Computed<X>;
  NormalizedRows rows;
  int64_t pieces, rows_of_piece;
  bool has_dx, has_dscale, has_dbias;

  Backward(const NodeSpec& spec, const NormalizedRows& r) : rows(r) {
    constexpr int64_t kLeastRows = 64, kMostPieces = 64;
    pieces = std::clamp<int64_t>(rows.count / kLeastRows, 1, kMostPieces);
    rows_of_piece = (rows.count + pieces - 1) / pieces;
    has_dx = spec.has_output(0);
    has_dscale = spec.num_outputs() > 1 && spec.has_output(1);
    has_dbias = spec.num_outputs() > 2 && spec.has_output(2);
  }
  bool has_sums() const { return has_dscale || has_dbias; }
  // The statistics of all rows, then the sums of all pieces.
  size_t workspace() const {
    const int64_t sums = has_sums() ? pieces * 2 * rows.n : 0;
    return static_cast<size_t>(rows.count) * sizeof(Statistics<T>) + static_cast<size_t>(sums) * sizeof(T);
  }

  void run(const Launch& launch) const {
    if (rows.n == 0) return;
    auto* const statistics = launch.scratch<Statistics<T>>();
    T* const sums = reinterpret_cast<T*>(statistics + rows.count);
    const X *x = launch.in<X>(0), *dy = launch.in<X>(2);
    const T* const scale = launch.in<T>(1);
    const auto for_rows = [&](auto f) {
      if (rows.count > 0) dispatch_row_threads(rows.count, rows.n, true, f);
    };
    for_rows([&]<int kRowThreads>(std::integral_constant<int, kRowThreads>) {
      enqueue(launch, "find_statistics", find_statistics<X, kRowThreads>, row_blocks<kRowThreads>(rows.count), kThreads,
              0, rows, x, statistics);
    });
    if (has_sums()) {  // before dx, which may take the place of x or dy
      const dim3 grid(static_cast<unsigned>((rows.n + kColumns - 1) / kColumns), static_cast<unsigned>(pieces));
      enqueue(launch, "sum_columns", sum_columns<X>, grid, dim3(kColumns, kColumnRows), 0, rows, rows_of_piece, x, dy,
              statistics, sums);
      enqueue(launch, "add_pieces", add_pieces<T>, blocks_for(rows.n), kThreads, 0, rows.n, pieces, sums,
              has_dscale ? launch.out<T>(1) : nullptr, has_dbias ? launch.out<T>(2) : nullptr);
    }
    if (!has_dx) return;
    for_rows([&]<int kRowThreads>(std::integral_constant<int, kRowThreads>) {
      enqueue(launch, "differentiate_rows", differentiate_rows<X, DX, kRowThreads>, row_blocks<kRowThreads>(rows.count),
              kThreads, 0, rows, guard_of(launch, 3, 1), x, scale, dy, statistics, launch.out<DX>());
    });
  }
};

template <typename X, typename DX>
Prepared prepare_backward(const NodeSpec& spec, const NormalizedRows& rows) {
  const Backward<X, DX> backward(spec, rows);
  std::vector<InPlace> in_place;
  if (sizeof(X) == sizeof(DX)) in_place = {{0, 2}, {0, 0}};
  return {[=](const Launch& launch) { backward.run(launch); }, backward.workspace(), std::move(in_place)};
}

// ---- Rows of the table

// The type in which elements of this type are computed.
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

// x and dy are stored in one type. Without dx, the type of dx is theirs.
DType type_of_dx(const NodeSpec& spec) { return spec.has_output(0) ? spec.out_type() : spec.in_type(); }

Kernel backward_kernel(const char* op, bool centered) {
  return {op,
          [=](const NodeSpec& spec) {
            const NormalizedRows rows(spec, centered);
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
