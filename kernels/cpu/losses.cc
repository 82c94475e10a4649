#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/multiversion.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/math/exp.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// The logits as [outer, classes, inner]; a position is one of the outer x inner vectors of logits.
struct Layout {
  int64_t outer = 1, classes = 1, inner = 1;
  int64_t positions() const { return outer * inner; }
};

Layout layout_of(const Shape& logits, int64_t axis) {
  axis = normalize_axis(axis, static_cast<int64_t>(logits.size()));
  Layout layout;
  for (int64_t i = 0; i < static_cast<int64_t>(logits.size()); ++i) {
    const int64_t size = logits[static_cast<size_t>(i)];
    (i < axis ? layout.outer : i == axis ? layout.classes : layout.inner) *= size;
  }
  return layout;
}

// What the attributes say, and which inputs hold the labels.
struct CrossEntropy {
  Layout layout;
  int64_t ignore_index;
  double smoothing;
  bool mean;
  bool wide_labels;  // int64 instead of int32
  bool has_weight;

  CrossEntropy(const NodeSpec& spec, int logits, int labels, int weight)
      : layout(layout_of(spec.in_shape(logits), spec.node().attr("axis", 1))),
        ignore_index(spec.node().attr("ignore_index", -100)),
        smoothing(spec.node().attr_tensor("label_smoothing").at(0)),
        mean(std::string(spec.node().attr("reduction", "mean")) == "mean"),
        wide_labels(spec.in_type(labels) == DType::kInt64),
        has_weight(spec.has_input(weight)) {}

  int64_t label(const void* labels, int64_t position) const {
    return wide_labels ? static_cast<const int64_t*>(labels)[position] : static_cast<const int32_t*>(labels)[position];
  }

  // The sum of the weights of the labels that count. Throws Error on a label that is no class, so that the parallel
  // part need not.
  template <typename T>
  double check_and_sum_weights(const void* labels, const T* weight) const {
    double total = 0;
    for (int64_t i = 0; i < layout.positions(); ++i) {
      const int64_t y = label(labels, i);
      if (y == ignore_index) continue;
      if (y < 0 || y >= layout.classes) {
        fail("label ", y, " at position ", i, " is outside the ", layout.classes, " classes 0 to ", layout.classes - 1,
             "; correct the labels, or name it ignore_index if such positions do not count");
      }
      total += weight ? static_cast<double>(weight[y]) : 1.0;
    }
    return total;
  }
};

template <typename T>
[[gnu::always_inline]] inline T log_sum_exp_body(const T* x, int64_t n) {
  T highest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t c = 0; c < n; ++c) highest = x[c] > highest ? x[c] : highest;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += fast_exp(x[c] - highest);
  return highest + std::log(sum);
}

ONNX_TRAIN_MULTIVERSION float log_sum_exp(const float* x, int64_t n) { return log_sum_exp_body(x, n); }
double log_sum_exp(const double* x, int64_t n) { return log_sum_exp_body(x, n); }

// The same for `lanes` neighbouring vectors, whose elements are `stride` apart.
template <typename T>
[[gnu::always_inline]] inline void log_sum_exp_lanes_body(const T* x, int64_t n, int64_t stride, int64_t lanes, T* out,
                                                          T* highest) {
  std::fill(highest, highest + lanes, -std::numeric_limits<T>::infinity());
  std::fill(out, out + lanes, T{0});
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) highest[i] = row[i] > highest[i] ? row[i] : highest[i];
  }
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) out[i] += fast_exp(row[i] - highest[i]);
  }
  for (int64_t i = 0; i < lanes; ++i) out[i] = highest[i] + std::log(out[i]);
}

ONNX_TRAIN_MULTIVERSION void log_sum_exp_lanes(const float* x, int64_t n, int64_t stride, int64_t lanes, float* out,
                                               float* highest) {
  log_sum_exp_lanes_body(x, n, stride, lanes, out, highest);
}
void log_sum_exp_lanes(const double* x, int64_t n, int64_t stride, int64_t lanes, double* out, double* highest) {
  log_sum_exp_lanes_body(x, n, stride, lanes, out, highest);
}

constexpr int64_t kLanes = 64;

// Calls f(outer, first inner, number of inner) for pieces of at most kLanes positions, in parallel.
template <typename F>
void for_each_piece(const Layout& layout, F&& f) {
  const int64_t pieces = (layout.inner + kLanes - 1) / kLanes;
  const int64_t grain =
      std::max<int64_t>(1, kElementGrain / 4 / std::max<int64_t>(1, layout.classes * std::min(layout.inner, kLanes)));
  parallel_for(layout.outer * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kLanes;
      f(i / pieces, first, std::min(kLanes, layout.inner - first));
    }
  });
}

// Σ_c w[c] (l - x[c]), elements `stride` apart.
template <typename T>
double weighted_distance(const T* x, int64_t n, int64_t stride, T l, const T* weight) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += static_cast<double>((weight ? weight[c] : T{1}) * (l - x[c * stride]));
  return sum;
}

template <typename T>
void run_loss(const CrossEntropy& ce, bool keeps_log_sums, const Args& args) {
  const Layout& layout = ce.layout;
  const T* logits = args.in<T>(0);
  const T* weight = ce.has_weight ? args.in<T>(2) : nullptr;
  const double total_weight = ce.check_and_sum_weights(args.inputs[1], weight);
  double* rows = args.scratch<double>();  // one loss for each position, summed in order afterwards
  T* log_sums = keeps_log_sums ? args.out<T>(1) : reinterpret_cast<T*>(rows + layout.positions());
  for_each_piece(layout, [&](int64_t outer, int64_t first, int64_t lanes) {
    const T* x = logits + outer * layout.classes * layout.inner + first;
    const int64_t position = outer * layout.inner + first;
    T* l = log_sums + position;
    if (layout.inner == 1) {
      *l = log_sum_exp(x, layout.classes);
    } else {
      T highest[kLanes];
      log_sum_exp_lanes(x, layout.classes, layout.inner, lanes, l, highest);
    }
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t y = ce.label(args.inputs[1], position + i);
      double& row = rows[position + i];
      row = 0;
      if (y == ce.ignore_index) continue;
      row = (1 - ce.smoothing) * static_cast<double>((weight ? weight[y] : T{1}) * (l[i] - x[y * layout.inner + i]));
      if (ce.smoothing > 0) {
        row += ce.smoothing / static_cast<double>(layout.classes) *
               weighted_distance(x + i, layout.classes, layout.inner, l[i], weight);
      }
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < layout.positions(); ++i) sum += rows[i];
  *args.out<T>(0) = static_cast<T>(ce.mean ? sum / total_weight : sum);
}

// dx[c] = a exp(x[c] - l)
template <typename T>
[[gnu::always_inline]] inline void scaled_softmax_body(const T* x, int64_t n, T l, T a, T* dx) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) dx[c] = a * fast_exp(x[c] - l);
}

ONNX_TRAIN_MULTIVERSION void scaled_softmax(const float* x, int64_t n, float l, float a, float* dx) {
  scaled_softmax_body(x, n, l, a, dx);
}
void scaled_softmax(const double* x, int64_t n, double l, double a, double* dx) { scaled_softmax_body(x, n, l, a, dx); }

template <typename T>
[[gnu::always_inline]] inline void scaled_softmax_lanes_body(const T* x, int64_t lanes, const T* l, const T* a, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) dx[i] = a[i] * fast_exp(x[i] - l[i]);
}

ONNX_TRAIN_MULTIVERSION void scaled_softmax_lanes(const float* x, int64_t lanes, const float* l, const float* a,
                                                  float* dx) {
  scaled_softmax_lanes_body(x, lanes, l, a, dx);
}
void scaled_softmax_lanes(const double* x, int64_t lanes, const double* l, const double* a, double* dx) {
  scaled_softmax_lanes_body(x, lanes, l, a, dx);
}

template <typename T>
void run_grad(const CrossEntropy& ce, const Args& args) {
  const Layout& layout = ce.layout;
  const T* logits = args.in<T>(1);
  const T* log_sums = args.in<T>(3);
  const T* weight = ce.has_weight ? args.in<T>(4) : nullptr;
  T* dlogits = args.out<T>();
  const double total_weight = ce.check_and_sum_weights(args.inputs[2], weight);
  const double scale = static_cast<double>(*args.in<T>(0)) / (ce.mean ? total_weight : 1.0);
  double weight_sum = static_cast<double>(layout.classes);
  if (weight && ce.smoothing > 0) {
    weight_sum = 0;
    for (int64_t c = 0; c < layout.classes; ++c) weight_sum += static_cast<double>(weight[c]);
  }
  const double spread = scale * ce.smoothing / static_cast<double>(layout.classes);
  for_each_piece(layout, [&](int64_t outer, int64_t first, int64_t lanes) {
    const int64_t offset = outer * layout.classes * layout.inner + first;
    const int64_t position = outer * layout.inner + first;
    const T *x = logits + offset, *l = log_sums + position;
    T* dx = dlogits + offset;
    T label_share[kLanes] = {}, softmax_share[kLanes] = {};
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t y = ce.label(args.inputs[2], position + i);
      const bool counts = y != ce.ignore_index;
      const double share = counts ? scale * (1 - ce.smoothing) * (weight ? static_cast<double>(weight[y]) : 1.0) : 0;
      label_share[i] = static_cast<T>(share);
      softmax_share[i] = static_cast<T>(counts ? share + spread * weight_sum : 0);
    }
    if (layout.inner == 1) {
      scaled_softmax(x, layout.classes, *l, *softmax_share, dx);
    } else {
      for (int64_t c = 0; c < layout.classes; ++c) {
        scaled_softmax_lanes(x + c * layout.inner, lanes, l, softmax_share, dx + c * layout.inner);
      }
    }
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t y = ce.label(args.inputs[2], position + i);
      if (y == ce.ignore_index) {
        for (int64_t c = 0; c < layout.classes; ++c) dx[c * layout.inner + i] = 0;  // not 0 times infinity
        continue;
      }
      dx[y * layout.inner + i] -= label_share[i];
      if (ce.smoothing == 0) continue;
      for (int64_t c = 0; c < layout.classes; ++c) {
        dx[c * layout.inner + i] -= static_cast<T>(spread) * (weight ? weight[c] : T{1});
      }
    }
  });
}

bool has_supported_types(const NodeSpec& spec, int logits, int labels) {
  const DType label_type = spec.in_type(labels);
  return is_float_or_double(spec.in_type(logits)) && (label_type == DType::kInt64 || label_type == DType::kInt32);
}

Prepared prepare_loss(const NodeSpec& spec) {
  const CrossEntropy ce(spec, 0, 1, 2);
  const bool keeps_log_sums = spec.has_output(1);
  const auto positions = static_cast<size_t>(ce.layout.positions());
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    const size_t log_sums = keeps_log_sums ? 0 : positions * sizeof(T);
    return {.run = [=](const Args& args) { run_loss<T>(ce, keeps_log_sums, args); },
            .workspace = positions * sizeof(double) + log_sums,
            .in_place = {}};
  });
}

Prepared prepare_grad(const NodeSpec& spec) {
  const CrossEntropy ce(spec, 1, 2, 4);
  return dispatch_float(spec.in_type(1), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {.run = [ce](const Args& args) { run_grad<T>(ce, args); }, .in_place = {{0, 1}}};
  });
}

}  // namespace

std::vector<Kernel> loss_kernels() {
  return {
      {"SoftmaxCrossEntropy", [](const NodeSpec& s) { return has_supported_types(s, 0, 1); }, prepare_loss, kDomain},
      {"SoftmaxCrossEntropyGrad", [](const NodeSpec& s) { return has_supported_types(s, 1, 2); }, prepare_grad,
       kDomain},
  };
}

}  // namespace onnx_train::cpu
