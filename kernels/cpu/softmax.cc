// Softmax and its relatives along one axis. A tensor is [outer, axis, inner]. With inner = 1 (the usual last axis) the
// axis lies in one piece, a row; otherwise columns are copied in groups to scratch memory, where they are rows.
#include <algorithm>
#include <limits>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/maps.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// ---- One row: y from a and, for gradients, b. y may be a or b.

template <typename T>
T max_of(int64_t n, const T* x) {
  T max = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

// y = exp(x - max x) / Σ exp(x - max x)
struct Softmax {
  template <typename T>
  void operator()(int64_t n, const T* x, const T*, T* y) const {
    const T max = max_of(n, x);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      const T e = math::exp(x[i] - max);
      y[i] = e;
      sum += e;
    }
    const T scale = T{1} / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
  }
};

// y = x - max x - log Σ exp(x - max x)
struct LogSoftmax {
  template <typename T>
  void operator()(int64_t n, const T* x, const T*, T* y) const {
    const T max = max_of(n, x);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += math::exp(x[i] - max);
    const T log_sum = math::log(sum);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] - max - log_sum;
  }
};

// One at the first largest element, zero elsewhere.
struct Hardmax {
  template <typename T>
  void operator()(int64_t n, const T* x, const T*, T* y) const {
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) best = x[i] > x[best] ? i : best;
    for (int64_t i = 0; i < n; ++i) y[i] = i == best ? T{1} : T{0};
  }
};

// dx = y (dy - Σ dy y)
struct SoftmaxGrad {
  template <typename T>
  void operator()(int64_t n, const T* dy, const T* y, T* dx) const {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += dy[i] * y[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sum);
  }
};

// dx = dy - exp(y) Σ dy
struct LogSoftmaxGrad {
  template <typename T>
  void operator()(int64_t n, const T* dy, const T* y, T* dx) const {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += dy[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - math::exp(y[i]) * sum;
  }
};

// ---- All rows

struct Layout {
  int64_t outer = 1, axis = 1, inner = 1;
  int64_t grain = 1;  // rows that are worth a thread
};

Layout layout_of(const NodeSpec& spec) {
  const Shape shape = spec.out_shape();
  const auto axis =
      static_cast<size_t>(normalize_axis(spec.node().attr("axis", -1), static_cast<int64_t>(shape.size())));
  Layout layout;
  for (size_t i = 0; i < shape.size(); ++i) {
    (i < axis ? layout.outer : i == axis ? layout.axis : layout.inner) *= shape[i];
  }
  layout.grain = std::max<int64_t>(1, kElementGrain / 4 / std::max<int64_t>(layout.axis, 1));
  return layout;
}

template <typename T, typename Row>
void run_rows(const Layout& layout, const T* a, const T* b, T* y, Row row) {
  parallel_for(layout.outer, layout.grain, [=](int64_t begin, int64_t end) {
    vectorized([=] {
      const int64_t n = layout.axis;
      for (int64_t i = begin; i < end; ++i) row(n, a + i * n, b ? b + i * n : nullptr, y + i * n);
    });
  });
}

constexpr int64_t kGroup = 16;  // columns copied together: a cache line of floats

template <typename T>
void columns_to_rows(int64_t n, int64_t columns, const T* from, int64_t stride, T* to) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < columns; ++c) to[c * n + i] = from[i * stride + c];
  }
}

template <typename T>
void rows_to_columns(int64_t n, int64_t columns, const T* from, T* to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < columns; ++c) to[i * stride + c] = from[c * n + i];
  }
}

// The groups of columns are dealt out to `shares` threads, each with 2 · kGroup rows of `scratch`.
template <typename T, typename Row>
void run_columns(const Layout& layout, int64_t shares, const T* a, const T* b, T* y, T* scratch, Row row) {
  const int64_t n = layout.axis, inner = layout.inner, in_outer = (inner + kGroup - 1) / kGroup;
  const int64_t groups = layout.outer * in_outer;
  const auto run_group = [=](int64_t group, T* rows_a, T* rows_b) {
    const int64_t column = group % in_outer * kGroup, columns = std::min(kGroup, inner - column);
    const int64_t offset = group / in_outer * n * inner + column;
    columns_to_rows(n, columns, a + offset, inner, rows_a);
    if (b) columns_to_rows(n, columns, b + offset, inner, rows_b);
    vectorized([=] {
      for (int64_t c = 0; c < columns; ++c) row(n, rows_a + c * n, rows_b + c * n, rows_a + c * n);
    });
    rows_to_columns(n, columns, rows_a, y + offset, inner);
  };
  parallel_for(shares, 1, [=](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      T* rows = scratch + share * 2 * kGroup * n;
      for (int64_t group = groups * share / shares; group < groups * (share + 1) / shares; ++group) {
        run_group(group, rows, rows + kGroup * n);
      }
    }
  });
}

// How many threads the columns are worth.
int64_t shares_of(const Layout& layout, int threads) {
  const int64_t rows = layout.outer * layout.inner;
  return std::clamp<int64_t>(rows / layout.grain, 1, std::max(threads, 1));
}

template <typename T, typename Row>
Prepared prepare_rows(const NodeSpec& spec, Row row) {
  Prepared prepared;
  const Layout layout = layout_of(spec);
  const bool two_operands = spec.num_inputs() == 2;
  const int64_t shares = shares_of(layout, spec.threads());
  if (layout.inner > 1) prepared.workspace = static_cast<size_t>(shares * 2 * kGroup * layout.axis) * sizeof(T);
  prepared.run = [layout, shares, two_operands, row](const Args& args) {
    const T *a = args.in<T>(0), *b = two_operands ? args.in<T>(1) : nullptr;
    if (layout.inner > 1) {
      run_columns(layout, shares, a, b, args.out<T>(), args.scratch<T>(), row);
    } else if (layout.axis > 0) {
      run_rows(layout, a, b, args.out<T>(), row);
    }
  };
  prepared.in_place = in_place_of_equal_inputs(spec);
  return prepared;
}

template <typename Row>
Kernel along_axis(const char* op, const char* domain = "") {
  return {op, takes_floats,
          [](const NodeSpec& spec) {
            return dispatch_float(spec.in_type(), [&](auto t) { return prepare_rows<decltype(t)>(spec, Row{}); });
          },
          domain};
}

}  // namespace

std::vector<Kernel> softmax_kernels() {
  return {
      along_axis<Softmax>("Softmax"),
      along_axis<LogSoftmax>("LogSoftmax"),
      along_axis<Hardmax>("Hardmax"),
      along_axis<SoftmaxGrad>("SoftmaxGrad", kDomain),
      along_axis<LogSoftmaxGrad>("LogSoftmaxGrad", kDomain),
  };
}

}  // namespace onnx_train::cpu
