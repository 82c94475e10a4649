#include <cmath>

#include "kernels/cpu/normalization.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// Which of the two: centered is LayerNormalization, otherwise RMSNormalization.
enum class Kind { kCentered, kRootMeanSquare };

struct RowStatistics {
  double mean;
  double inv_std;
};

template <typename T>
RowStatistics row_statistics(Kind kind, const T* x, int64_t n, double epsilon) {
  const T mean = kind == Kind::kCentered ? sum(x, n) / static_cast<T>(n) : T{0};
  const double variance = static_cast<double>(sum_of_squares(x, mean, n)) / static_cast<double>(n);
  return {static_cast<double>(mean), 1 / std::sqrt(variance + epsilon)};
}

// y = (x - mean) inv_std scale + bias; no bias where it is null. y may be x.
template <typename T>
ONNX_TRAIN_MULTIVERSION void normalize_row(const T* x, const T* __restrict scale, const T* __restrict bias, T mean,
                                           T inv_std, int64_t n, T* y) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv_std * scale[i] + bias[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv_std * scale[i];
  }
}

// Rows of `n` elements: what lies behind `axis`.
struct Rows {
  int64_t count = 1, n = 1;
  explicit Rows(const NodeSpec& s) {
    const Shape shape = s.in_shape(0);
    const auto axis =
        static_cast<size_t>(normalize_axis(s.node().attr("axis", -1), static_cast<int64_t>(shape.size())));
    for (size_t i = 0; i < shape.size(); ++i) (i < axis ? count : n) *= shape[i];
  }
  // How many rows are worth a thread.
  int64_t grain() const { return std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(n, 1)); }
};

// The scale and bias have as many elements as a row; a broadcast one is left to the operator's body.
bool supports_forward(const NodeSpec& s) {
  const bool bias = s.has_input(2) && s.node().is("LayerNormalization");
  const int64_t n = Rows(s).n;
  return is_float_or_double(s.in_type()) && s.in_size(1) == n && (!bias || s.in_size(2) == n);
}

bool supports_backward(const NodeSpec& s) {
  return is_float_or_double(s.in_type()) && s.in_size(1) == Rows(s).n && s.in_shape(2) == s.in_shape(0);
}

// Mean and InvStdDev have the type that stash_type says; we compute in the input's.
std::function<void(const Args&, int64_t row, double value)> statistics_writer(const NodeSpec& s, int output) {
  if (output >= s.num_outputs() || !s.has_output(output)) return [](const Args&, int64_t, double) {};
  return dispatch_float(s.out_type(output), [output](auto zero) {
    using T = decltype(zero);
    return std::function<void(const Args&, int64_t, double)>(
        [output](const Args& a, int64_t row, double value) { a.out<T>(output)[row] = static_cast<T>(value); });
  });
}

Prepared prepare_forward(const NodeSpec& s, Kind kind) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Rows rows(s);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const bool has_bias = kind == Kind::kCentered && s.has_input(2);
    const auto write_mean = statistics_writer(s, 1), write_inv_std = statistics_writer(s, 2);
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *bias = has_bias ? a.in<T>(2) : nullptr;
      parallel_for(rows.count, rows.grain(), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const RowStatistics row = row_statistics(kind, x + r * rows.n, rows.n, epsilon);
          normalize_row(x + r * rows.n, scale, bias, static_cast<T>(row.mean), static_cast<T>(row.inv_std), rows.n,
                        a.out<T>() + r * rows.n);
          write_mean(a, r, row.mean);
          write_inv_std(a, r, row.inv_std);
        }
      });
    };
    return {run, 0, {{0, 0}}};
  });
}

// ---- Gradients: the bodies of LayerNormalizationGrad and RMSNormalizationGrad, row by row

// Σ g and Σ g x̂, where g = dy scale.
template <typename T>
struct RowSums {
  T g, along;
};
template <typename T>
ONNX_TRAIN_MULTIVERSION RowSums<T> sum_row(const T* __restrict x, const T* __restrict scale, const T* __restrict dy,
                                           T mean, T inv_std, int64_t n) {
  T g_sum = 0, along = 0;
#pragma omp simd reduction(+ : g_sum, along)
  for (int64_t i = 0; i < n; ++i) {
    const T g = dy[i] * scale[i];
    g_sum += g;
    along += g * (x[i] - mean) * inv_std;
  }
  return {g_sum, along};
}

// dx = (g - g_mean - x̂ along_mean) inv_std. dx may be x or dy.
template <typename T>
ONNX_TRAIN_MULTIVERSION void differentiate_row(const T* x, const T* scale, const T* dy, T mean, T inv_std, T g_mean,
                                               T along_mean, int64_t n, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = (dy[i] * scale[i] - g_mean - (x[i] - mean) * inv_std * along_mean) * inv_std;
  }
}

// dscale += dy x̂, dbias += dy
template <typename T>
ONNX_TRAIN_MULTIVERSION void add_row(const T* __restrict x, const T* __restrict dy, T mean, T inv_std, int64_t n,
                                     T* __restrict dscale, T* __restrict dbias) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dscale[i] += dy[i] * (x[i] - mean) * inv_std;
    dbias[i] += dy[i];
  }
}

// Sums the pieces' rows of `n`, `stride` apart, into `out`.
template <typename T>
void sum_pieces(const T* parts, int64_t count, int64_t stride, int64_t n, T* out) {
  parallel_for(n, kElementGrain / count, [&](int64_t begin, int64_t end) {
    std::copy(parts + begin, parts + end, out + begin);
    for (int64_t p = 1; p < count; ++p) {
      for (int64_t i = begin; i < end; ++i) out[i] += parts[p * stride + i];
    }
  });
}

Prepared prepare_backward(const NodeSpec& s, Kind kind) {
  return dispatch_float(s.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Rows rows(s);
    const double epsilon = s.node().attr("epsilon", kEpsilon);
    const Pieces pieces(rows.count, std::max<int64_t>(rows.grain() / 4, 8));
    const bool wants_scale = s.has_output(1), wants_bias = s.has_output(2), sums = wants_scale || wants_bias;
    const auto run = [=](const Args& a) {
      const T *x = a.in<T>(0), *scale = a.in<T>(1), *dy = a.in<T>(2);
      T* dx = a.out<T>(0);
      const int64_t n = rows.n, stride = 2 * n;  // a piece's dscale, then its dbias
      parallel_for(pieces.count, 1, [&](int64_t first, int64_t last) {
        for (int64_t piece = first; piece < last; ++piece) {
          T* dscale = a.scratch<T>() + piece * stride;
          if (sums) std::fill(dscale, dscale + stride, T{0});
          for (int64_t r = pieces.begin(piece); r < pieces.end(piece); ++r) {
            const T *xr = x + r * n, *dyr = dy + r * n;
            const RowStatistics row = row_statistics(kind, xr, n, epsilon);
            const T mean = static_cast<T>(row.mean), inv_std = static_cast<T>(row.inv_std);
            if (sums) add_row(xr, dyr, mean, inv_std, n, dscale, dscale + n);
            if (!dx) continue;
            const RowSums<T> total = sum_row(xr, scale, dyr, mean, inv_std, n);
            const T g_mean = kind == Kind::kCentered ? total.g / static_cast<T>(n) : T{0};
            differentiate_row(xr, scale, dyr, mean, inv_std, g_mean, total.along / static_cast<T>(n), n, dx + r * n);
          }
        }
      });
      if (wants_scale) sum_pieces(a.scratch<T>(), pieces.count, stride, n, a.out<T>(1));
      if (wants_bias) sum_pieces(a.scratch<T>() + n, pieces.count, stride, n, a.out<T>(2));
    };
    const auto workspace = sums ? static_cast<size_t>(pieces.count * 2 * rows.n) * sizeof(T) : 0;
    return {run, workspace, {{0, 2}, {0, 0}}};
  });
}

}  // namespace

std::vector<Kernel> layer_normalization_kernels() {
  const auto forward = [](Kind kind) { return [kind](const NodeSpec& s) { return prepare_forward(s, kind); }; };
  const auto backward = [](Kind kind) { return [kind](const NodeSpec& s) { return prepare_backward(s, kind); }; };
  return {
      {"LayerNormalization", supports_forward, forward(Kind::kCentered)},
      {"RMSNormalization", supports_forward, forward(Kind::kRootMeanSquare)},
      {"LayerNormalizationGrad", supports_backward, backward(Kind::kCentered), kDomain},
      {"RMSNormalizationGrad", supports_backward, backward(Kind::kRootMeanSquare), kDomain},
  };
}

}  // namespace onnx_train::cpu
