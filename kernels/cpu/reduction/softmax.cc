// Softmax and related operators along one axis of [outer, axis, inner]. With inner = 1 (the usual last axis) the
// elements along the axis are a contiguous row; otherwise columns are copied in groups to scratch memory as rows.
#include <algorithm>
#include <limits>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/broadcast.h"
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

// 1 at the first maximum, 0 elsewhere.
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
  int64_t grain = 1;  // rows per thread that make a thread worthwhile
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

// The operands of a run: y from a and, for gradients, b.
template <typename T>
struct Operands {
  LinesIn<T> a, b;
  LinesOut<T> y;
};

// A range of rows, with scratch memory for two of them.
template <typename T, typename Row>
void run_some_rows(int64_t first, int64_t count, int64_t n, const Operands<T>& operands, T* scratch, Row row) {
  const int64_t offset = first * n, size = count * n;
  const T* a = operands.a.get(offset, size, scratch);
  const T* b = operands.b.there() ? operands.b.get(offset, size, scratch + size) : nullptr;
  T* y = operands.y.place(offset, scratch);
  vectorized([=] {
    for (int64_t i = 0; i < count; ++i) row(n, a + i * n, b ? b + i * n : nullptr, y + i * n);
  });
  operands.y.put(offset, size, y);
}

// Divides the rows among `shares` threads; each has scratch memory for two blocks of converted rows.
template <typename T, typename Row>
void run_rows(const Layout& layout, int64_t shares, const Operands<T>& operands, T* scratch, Row row) {
  const bool narrow = operands.a.narrow() || operands.b.narrow() || operands.y.narrow();
  const int64_t n = layout.axis, at_once = narrow ? lines_at_once(n) : layout.outer;
  parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      T* own = narrow ? scratch + share * 2 * at_once * n : nullptr;
      const int64_t last = layout.outer * (share + 1) / shares;
      for (int64_t i = layout.outer * share / shares; i < last; i += at_once) {
        run_some_rows(i, std::min(at_once, last - i), n, operands, own, row);
      }
    }
  });
}

constexpr int64_t kGroup = 16;  // columns copied together: a cache line of floats

template <typename T>
void columns_to_rows(int64_t n, int64_t columns, const LinesIn<T>& from, int64_t offset, int64_t stride, T* to) {
  T widened[kGroup];
  for (int64_t i = 0; i < n; ++i) {
    const T* line = from.get(offset + i * stride, columns, widened);
    for (int64_t c = 0; c < columns; ++c) to[c * n + i] = line[c];
  }
}

template <typename T>
void rows_to_columns(int64_t n, int64_t columns, const T* from, const LinesOut<T>& to, int64_t offset, int64_t stride) {
  T wide[kGroup];
  for (int64_t i = 0; i < n; ++i) {
    T* line = to.place(offset + i * stride, wide);
    for (int64_t c = 0; c < columns; ++c) line[c] = from[c * n + i];
    to.put(offset + i * stride, columns, line);
  }
}

// Divides the groups of columns among `shares` threads; each has 2 · kGroup rows of `scratch`.
template <typename T, typename Row>
void run_columns(const Layout& layout, int64_t shares, const Operands<T>& operands, T* scratch, Row row) {
  const int64_t n = layout.axis, inner = layout.inner, in_outer = (inner + kGroup - 1) / kGroup;
  const int64_t groups = layout.outer * in_outer;
  const auto run_group = [&](int64_t group, T* rows_a, T* rows_b) {
    const int64_t column = group % in_outer * kGroup, columns = std::min(kGroup, inner - column);
    const int64_t offset = group / in_outer * n * inner + column;
    columns_to_rows(n, columns, operands.a, offset, inner, rows_a);
    if (operands.b.there()) columns_to_rows(n, columns, operands.b, offset, inner, rows_b);
    vectorized([=] {
      for (int64_t c = 0; c < columns; ++c) row(n, rows_a + c * n, rows_b + c * n, rows_a + c * n);
    });
    rows_to_columns(n, columns, rows_a, operands.y, offset, inner);
  };
  parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      T* rows = scratch + share * 2 * kGroup * n;
      for (int64_t group = groups * share / shares; group < groups * (share + 1) / shares; ++group) {
        run_group(group, rows, rows + kGroup * n);
      }
    }
  });
}

// The number of threads that the rows keep busy.
int64_t shares_of(const Layout& layout, int threads) {
  const int64_t rows = layout.outer * layout.inner;
  return std::clamp<int64_t>(rows / layout.grain, 1, std::max(threads, 1));
}

template <typename T, typename Row>
Prepared prepare_rows(const NodeSpec& spec, Row row) {
  Prepared prepared;
  const Layout layout = layout_of(spec);
  const bool two = spec.num_inputs() == 2;
  const bool narrow_a = is_narrow(spec.in_type(0)), narrow_b = two && is_narrow(spec.in_type(1)),
             narrow_y = is_narrow(spec.out_type());
  const int64_t shares = shares_of(layout, spec.threads());
  const int64_t at_once = layout.inner > 1 ? kGroup : narrow_a || narrow_b || narrow_y ? lines_at_once(layout.axis) : 0;
  prepared.workspace = static_cast<size_t>(shares * 2 * at_once * layout.axis) * sizeof(T);
  prepared.run = [=](const Launch& launch) {
    const Operands<T> operands{
        {launch.inputs[0], narrow_a}, {two ? launch.inputs[1] : nullptr, narrow_b}, {launch.outputs[0], narrow_y}};
    if (layout.inner > 1) {
      run_columns(layout, shares, operands, launch.scratch<T>(), row);
    } else if (layout.inner * layout.axis > 0) {
      run_rows(layout, shares, operands, launch.scratch<T>(), row);
    }
  };
  prepared.in_place = in_place_of_equal_inputs(spec, spec.num_inputs());
  return prepared;
}

template <typename Row>
Kernel along_axis(const char* op, const char* domain = "") {
  return {op, [](const NodeSpec& spec) { return is_float_or_double(spec.in_type()); },
          [](const NodeSpec& spec) {
            return dispatch_float(computed_type(spec.in_type()),
                                  [&](auto t) { return prepare_rows<decltype(t)>(spec, Row{}); });
          },
          domain};
}

// The row of our domain: some or all operands are bfloat16 (kernels/lowering/storage/narrow_storage.cc).
template <typename Row>
Kernel stored_along_axis(const char* op) {
  Kernel kernel = along_axis<Row>(op, kDomain);
  kernel.supports = [](const NodeSpec& spec) { return computes_in_one_type(spec, {0, 1}, {0}); };
  return kernel;
}

}  // namespace

std::vector<Kernel> softmax_kernels() {
  return {
      along_axis<Softmax>("Softmax"),
      along_axis<LogSoftmax>("LogSoftmax"),
      along_axis<Hardmax>("Hardmax"),
      stored_along_axis<Softmax>("Softmax"),
      stored_along_axis<LogSoftmax>("LogSoftmax"),
      stored_along_axis<SoftmaxGrad>("SoftmaxGrad"),
      stored_along_axis<LogSoftmaxGrad>("LogSoftmaxGrad"),
  };
}

}  // namespace onnx_train::cpu
