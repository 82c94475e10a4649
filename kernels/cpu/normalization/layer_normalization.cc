#include <cmath>

#include "kernels/cpu/normalization/normalization.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/row_normalization.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// kCentered is LayerNormalization, kRootMeanSquare is RMSNormalization.
enum class Kind { kCentered, kRootMeanSquare };

struct RowStatistics {
  double mean;
  double inv_std;
};

template <typename T>
RowStatistics row_statistics(Kind kind, const T* x, int64_t n, double epsilon) {
  const T mean = kind == Kind::kCentered ? vectorized([&] { return sum(x, n); }) / static_cast<T>(n) : T{0};
  const double variance =
      static_cast<double>(vectorized([&] { return sum_of_squares(x, mean, n); })) / static_cast<double>(n);
  return {static_cast<double>(mean), 1 / std::sqrt(variance + epsilon)};
}

// y = (x - mean) inv_std scale + bias; the bias may be null. y may be x.
template <typename T>
void normalize_row(const T* x, const T* __restrict scale, const T* __restrict bias, T mean, T inv_std, int64_t n,
                   T* y) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv_std * scale[i] + bias[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inv_std * scale[i];
  }
}

struct Rows : NormalizedRows {
  Rows(const NodeSpec& s, Kind kind) : NormalizedRows(s, kind == Kind::kCentered) {}
  // Rows per thread that make a thread worthwhile.
  int64_t grain() const { return std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(n, 1)); }

  // Number of threads that share the rows.
  int64_t shares(int threads) const { return std::clamp<int64_t>(count / grain(), 1, std::max(threads, 1)); }
};

bool has_parameters_for_rows(const NodeSpec& s, Kind kind) { return Rows(s, kind).has_parameters_of_rows(s); }

bool has_scale_and_gradient(const NodeSpec& s) {
  return s.in_size(1) == Rows(s, Kind::kCentered).n && s.in_shape(2) == s.in_shape(0);
}

// Mean and InvStdDev are stored in the type that stash_type names; the computation uses the input's type.
std::function<void(const Launch&, int64_t row, double value)> statistics_writer(const NodeSpec& s, int output) {
  if (output >= s.num_outputs() || !s.has_output(output)) return [](const Launch&, int64_t, double) {};
  return dispatch_float(s.out_type(output), [output](auto zero) {
    using T = decltype(zero);
    return std::function<void(const Launch&, int64_t, double)>(
        [output](const Launch& a, int64_t row, double value) { a.out<T>(output)[row] = static_cast<T>(value); });
  });
}

Prepared prepare_forward(const NodeSpec& s, Kind kind) {
  return dispatch_float(computed_type(s.in_type()), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Rows rows(s, kind);
    const bool has_bias = kind == Kind::kCentered && s.has_input(2);
    const bool narrow_x = is_narrow(s.in_type()), narrow_y = is_narrow(s.out_type());
    const int64_t shares = rows.shares(s.threads());
    const auto write_mean = statistics_writer(s, 1), write_inv_std = statistics_writer(s, 2);
    const auto run = [=](const Launch& a) {
      const LinesIn<T> in(a.inputs[0], narrow_x);
      const LinesOut<T> out(a.outputs[0], narrow_y);
      const T *scale = a.in<T>(1), *bias = has_bias ? a.in<T>(2) : nullptr;
      parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
        T* wide = a.scratch<T>() + begin * rows.n;
        for (int64_t r = rows.count * begin / shares; r < rows.count * end / shares; ++r) {
          const T* x = in.get(r * rows.n, rows.n, wide);
          T* y = out.place(r * rows.n, wide);
          const RowStatistics row = row_statistics(kind, x, rows.n, rows.epsilon);
          vectorized(
              [&] { normalize_row(x, scale, bias, static_cast<T>(row.mean), static_cast<T>(row.inv_std), rows.n, y); });
          out.put(r * rows.n, rows.n, y);
          write_mean(a, r, row.mean);
          write_inv_std(a, r, row.inv_std);
        }
      });
    };
    const int64_t widened = narrow_x || narrow_y ? shares * rows.n : 0;
    return {run, static_cast<size_t>(widened) * sizeof(T), {{0, 0}}};
  });
}

// ---- Gradients: the bodies of LayerNormalizationGrad and RMSNormalizationGrad, row by row

// Σ g and Σ g x̂, where g = dy scale.
template <typename T>
struct RowSums {
  T g, along;
};
template <typename T>
RowSums<T> sum_row(const T* __restrict x, const T* __restrict scale, const T* __restrict dy, T mean, T inv_std,
                   int64_t n) {
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
void differentiate_row(const T* x, const T* scale, const T* dy, T mean, T inv_std, T g_mean, T along_mean, int64_t n,
                       T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = (dy[i] * scale[i] - g_mean - (x[i] - mean) * inv_std * along_mean) * inv_std;
  }
}

// dscale += dy x̂, dbias += dy
template <typename T>
void add_row(const T* __restrict x, const T* __restrict dy, T mean, T inv_std, int64_t n, T* __restrict dscale,
             T* __restrict dbias) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dscale[i] += dy[i] * (x[i] - mean) * inv_std;
    dbias[i] += dy[i];
  }
}

// Sums the rows of `n` elements of all pieces, `stride` apart, into `out`.
template <typename T>
void sum_pieces(const T* parts, int64_t count, int64_t stride, int64_t n, T* out) {
  parallel_for(n, kElementGrain / count, [&](int64_t begin, int64_t end) {
    std::copy(parts + begin, parts + end, out + begin);
    for (int64_t p = 1; p < count; ++p) {
      for (int64_t i = begin; i < end; ++i) out[i] += parts[p * stride + i];
    }
  });
}

template <typename T>
struct Backward {
  Kind kind;
  Rows rows;
  Pieces pieces;
  bool narrow_x, narrow_dy, narrow_dx;
  bool sums;  // dscale or dbias is an output

  Backward(const NodeSpec& s, Kind k)
      : kind(k),
        rows(s, k),
        pieces(rows.count, std::max<int64_t>(rows.grain() / 4, 8)),
        narrow_x(is_narrow(s.in_type(0))),
        narrow_dy(is_narrow(s.in_type(2))),
        narrow_dx(s.has_output(0) && is_narrow(s.out_type(0))),
        sums(s.has_output(1) || s.has_output(2)) {}

  // Workspace rows of a piece: dscale and dbias; with bfloat16 tensors also a row of x and a row of dy, which dx
  // overwrites.
  int64_t wide_rows() const { return narrow_x || narrow_dy || narrow_dx ? 2 : 0; }
  int64_t stride() const { return ((sums ? 2 : 0) + wide_rows()) * rows.n; }

  void run(const Launch& a, int64_t piece) const {
    const int64_t n = rows.n;
    const T* scale = a.in<T>(1);
    const LinesIn<T> in(a.inputs[0], narrow_x), gradients(a.inputs[2], narrow_dy);
    const LinesOut<T> out(a.outputs[0], narrow_dx);
    T *dscale = a.scratch<T>() + piece * stride(), *wide = dscale + (sums ? 2 * n : 0);
    if (sums) std::fill(dscale, dscale + 2 * n, T{0});
    for (int64_t r = pieces.begin(piece); r < pieces.end(piece); ++r) {
      const T *x = in.get(r * n, n, wide), *dy = gradients.get(r * n, n, wide + n);
      const RowStatistics row = row_statistics(kind, x, n, rows.epsilon);
      const T mean = static_cast<T>(row.mean), inv_std = static_cast<T>(row.inv_std);
      if (sums) vectorized([&] { add_row(x, dy, mean, inv_std, n, dscale, dscale + n); });
      if (!out.there()) continue;
      const RowSums<T> total = vectorized([&] { return sum_row(x, scale, dy, mean, inv_std, n); });
      const T g_mean = kind == Kind::kCentered ? total.g / static_cast<T>(n) : T{0};
      T* dx = out.place(r * n, wide + n);
      vectorized(
          [&] { differentiate_row(x, scale, dy, mean, inv_std, g_mean, total.along / static_cast<T>(n), n, dx); });
      out.put(r * n, n, dx);
    }
  }
};

Prepared prepare_backward(const NodeSpec& s, Kind kind) {
  return dispatch_float(computed_type(s.in_type()), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const Backward<T> backward(s, kind);
    const bool wants_scale = s.has_output(1), wants_bias = s.has_output(2);
    const auto run = [=](const Launch& a) {
      const int64_t count = backward.pieces.count, stride = backward.stride(), n = backward.rows.n;
      parallel_for(count, 1, [&](int64_t first, int64_t last) {
        for (int64_t piece = first; piece < last; ++piece) backward.run(a, piece);
      });
      if (wants_scale) sum_pieces(a.scratch<T>(), count, stride, n, a.out<T>(1));
      if (wants_bias) sum_pieces(a.scratch<T>() + n, count, stride, n, a.out<T>(2));
    };
    const auto workspace = static_cast<size_t>(backward.pieces.count * backward.stride()) * sizeof(T);
    return {run, workspace, {{0, 2}, {0, 0}}};
  });
}

Kernel forward_kernel(const char* op, Kind kind) {
  return {op, [kind](const NodeSpec& s) { return is_float_or_double(s.in_type()) && has_parameters_for_rows(s, kind); },
          [kind](const NodeSpec& s) { return prepare_forward(s, kind); }};
}

// Rows of our domain. Forward x, y or both may be bfloat16 (kernels/lowering/storage/narrow_storage.cc), backward any
// of x, dy and dx.
Kernel stored_forward_kernel(const char* op, Kind kind) {
  return {op,
          [kind](const NodeSpec& s) { return computes_in_one_type(s, {0}, {0}) && has_parameters_for_rows(s, kind); },
          [kind](const NodeSpec& s) { return prepare_forward(s, kind); }, kDomain};
}

Kernel backward_kernel(const char* op, Kind kind) {
  return {op,
          [](const NodeSpec& s) {
            return computes_in_one_type(s, {0, 2}, {0}) && has_scale_and_gradient(s) && !s.has_input(3);
          },
          [kind](const NodeSpec& s) { return prepare_backward(s, kind); }, kDomain};
}

}  // namespace

std::vector<Kernel> layer_normalization_kernels() {
  return {
      forward_kernel("LayerNormalization", Kind::kCentered),
      forward_kernel("RMSNormalization", Kind::kRootMeanSquare),
      stored_forward_kernel("LayerNormalization", Kind::kCentered),
      stored_forward_kernel("RMSNormalization", Kind::kRootMeanSquare),
      backward_kernel("LayerNormalizationGrad", Kind::kCentered),
      backward_kernel("RMSNormalizationGrad", Kind::kRootMeanSquare),
  };
}

}  // namespace onnx_train::cpu
