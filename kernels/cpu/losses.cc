// Softmax and cross entropy in one go (the bodies are in functions/losses.cc): the loss reads each logit twice, the
// gradient once, and neither writes probabilities.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/around_axis.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/dispatch.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// What the attributes say, and where labels and weights are. A position is one line of logits along the class axis.
struct CrossEntropy {
  AroundAxis logits;
  int64_t ignore_index;
  double smoothing;
  bool mean;
  int labels_input, weight_input;  // -1: no weights
  bool wide_labels;                // int64 instead of int32

  CrossEntropy(const NodeSpec& spec, int logits_at, int labels_at, int weight_at)
      : logits(spec.in_shape(logits_at), spec.node().attr("axis", 1)),
        ignore_index(spec.node().attr("ignore_index", -100)),
        smoothing(spec.node().attr_tensor("label_smoothing").at(0)),
        mean(std::string(spec.node().attr("reduction", "mean")) == "mean"),
        labels_input(labels_at),
        weight_input(spec.has_input(weight_at) ? weight_at : -1),
        wide_labels(spec.in_type(labels_at) == DType::kInt64) {
    check_size(spec, labels_at, logits.lines(), "labels");
    if (weight_input >= 0) check_size(spec, weight_input, logits.size, "class weights");
  }

  void check_size(const NodeSpec& spec, int input, int64_t wanted, const char* what) const {
    if (spec.in_size(input) == wanted) return;
    fail(spec.node().label(), ": the ", what, " have the shape ", to_string(spec.in_shape(input)), "; with ",
         logits.size, " classes there must be ", wanted);
  }

  int64_t label(const Args& args, int64_t position) const {
    return wide_labels ? args.in<int64_t>(labels_input)[position] : args.in<int32_t>(labels_input)[position];
  }
  template <typename T>
  const T* weights(const Args& args) const {
    return weight_input < 0 ? nullptr : args.in<T>(weight_input);
  }
  double spread() const { return smoothing / static_cast<double>(logits.size); }

  // The sum of the weights of the labels that count. Throws Error on a label that is no class, so that the parallel
  // part need not.
  template <typename T>
  double check_and_sum_weights(const Args& args) const {
    const T* weight = weights<T>(args);
    double total = 0;
    for (int64_t i = 0; i < logits.lines(); ++i) {
      const int64_t y = label(args, i);
      if (y == ignore_index) continue;
      if (y < 0 || y >= logits.size) {
        fail("label ", y, " at position ", i, " is outside the ", logits.size, " classes 0 to ", logits.size - 1,
             "; correct the labels, or name it ignore_index if such positions do not count");
      }
      total += weight ? static_cast<double>(weight[y]) : 1.0;
    }
    return total;
  }
};

// Neighbouring positions that are computed together where the class axis is not the last.
constexpr int64_t kLanes = 64;

// `lanes` positions from `position` on, whose first logits are at `offset`.
struct Piece {
  int64_t offset, position, lanes;
};

// Calls f for pieces that together are all positions, in parallel.
template <typename F>
void for_each_piece(const AroundAxis& logits, const F& f) {
  const int64_t pieces = (logits.inner + kLanes - 1) / kLanes;
  const int64_t piece_size = std::max<int64_t>(1, logits.size * std::min(logits.inner, kLanes));
  parallel_for(logits.outer * pieces, std::max<int64_t>(1, kElementGrain / 4 / piece_size),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t outer = i / pieces, first = i % pieces * kLanes;
                   const Piece piece{outer * logits.size * logits.inner + first, outer * logits.inner + first,
                                     std::min(kLanes, logits.inner - first)};
                   vectorized([&] { f(piece); });
                 }
               });
}

// log Σ exp x
template <typename T>
T log_sum_exp(int64_t n, const T* x) {
  T highest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t c = 0; c < n; ++c) highest = x[c] > highest ? x[c] : highest;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += math::exp(x[c] - highest);
  return highest + std::log(sum);
}

// The same for `lanes` neighbouring lines, whose elements are `stride` apart.
template <typename T>
void log_sum_exp_lanes(int64_t n, const T* x, int64_t stride, int64_t lanes, T* result) {
  T highest[kLanes], sum[kLanes];
  std::fill(highest, highest + lanes, -std::numeric_limits<T>::infinity());
  std::fill(sum, sum + lanes, T{0});
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) highest[i] = row[i] > highest[i] ? row[i] : highest[i];
  }
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) sum[i] += math::exp(row[i] - highest[i]);
  }
  for (int64_t i = 0; i < lanes; ++i) result[i] = highest[i] + std::log(sum[i]);
}

// Σ_c w[c] (l - x[c]), elements `stride` apart.
template <typename T>
double weighted_distance(int64_t n, const T* x, int64_t stride, T l, const T* weight) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += static_cast<double>((weight ? weight[c] : T{1}) * (l - x[c * stride]));
  return sum;
}

template <typename T>
void run_loss(const CrossEntropy& ce, bool keeps_log_sums, const Args& args) {
  const auto [outer, classes, inner] = ce.logits;
  const T* weight = ce.weights<T>(args);
  const double total_weight = ce.check_and_sum_weights<T>(args);
  double* losses = args.scratch<double>();  // one for each position, summed in order afterwards
  T* log_sums = keeps_log_sums ? args.out<T>(1) : reinterpret_cast<T*>(losses + ce.logits.lines());
  for_each_piece(ce.logits, [&, classes = classes, inner = inner](const Piece& piece) {
    const T* x = args.in<T>(0) + piece.offset;
    T* l = log_sums + piece.position;
    if (inner == 1) {
      *l = log_sum_exp(classes, x);
    } else {
      log_sum_exp_lanes(classes, x, inner, piece.lanes, l);
    }
    for (int64_t i = 0; i < piece.lanes; ++i) {
      const int64_t y = ce.label(args, piece.position + i);
      double& loss = losses[piece.position + i];
      loss = 0;
      if (y == ce.ignore_index) continue;
      loss = (1 - ce.smoothing) * static_cast<double>((weight ? weight[y] : T{1}) * (l[i] - x[y * inner + i]));
      if (ce.smoothing > 0) loss += ce.spread() * weighted_distance(classes, x + i, inner, l[i], weight);
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < ce.logits.lines(); ++i) sum += losses[i];
  *args.out<T>(0) = static_cast<T>(ce.mean ? sum / total_weight : sum);
}

// dx = a exp(x - l)
template <typename T>
void scaled_softmax(int64_t n, const T* x, T l, T a, T* dx) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) dx[c] = a * math::exp(x[c] - l);
}

template <typename T>
void scaled_softmax_lanes(int64_t lanes, const T* x, const T* l, const T* a, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) dx[i] = a[i] * math::exp(x[i] - l[i]);
}

template <typename T>
void run_grad(const CrossEntropy& ce, const Args& args) {
  const auto [outer, classes, inner] = ce.logits;
  const T* weight = ce.weights<T>(args);
  const double total_weight = ce.check_and_sum_weights<T>(args);
  const double scale = static_cast<double>(*args.in<T>(0)) / (ce.mean ? total_weight : 1.0);
  double weight_sum = static_cast<double>(classes);
  if (weight && ce.smoothing > 0) {
    weight_sum = 0;
    for (int64_t c = 0; c < classes; ++c) weight_sum += static_cast<double>(weight[c]);
  }
  const double spread = scale * ce.spread();
  for_each_piece(ce.logits, [&, classes = classes, inner = inner](const Piece& piece) {
    const T *x = args.in<T>(1) + piece.offset, *l = args.in<T>(3) + piece.position;
    T* dx = args.out<T>() + piece.offset;
    T label_share[kLanes] = {}, softmax_share[kLanes] = {};
    for (int64_t i = 0; i < piece.lanes; ++i) {
      const int64_t y = ce.label(args, piece.position + i);
      if (y == ce.ignore_index) continue;
      const double share = scale * (1 - ce.smoothing) * (weight ? static_cast<double>(weight[y]) : 1.0);
      label_share[i] = static_cast<T>(share);
      softmax_share[i] = static_cast<T>(share + spread * weight_sum);
    }
    if (inner == 1) {
      scaled_softmax(classes, x, *l, *softmax_share, dx);
    } else {
      for (int64_t c = 0; c < classes; ++c) {
        scaled_softmax_lanes(piece.lanes, x + c * inner, l, softmax_share, dx + c * inner);
      }
    }
    for (int64_t i = 0; i < piece.lanes; ++i) {
      const int64_t y = ce.label(args, piece.position + i);
      if (y == ce.ignore_index) {
        for (int64_t c = 0; c < classes; ++c) dx[c * inner + i] = 0;  // not 0 times infinity
        continue;
      }
      dx[y * inner + i] -= label_share[i];
      if (ce.smoothing == 0) continue;
      for (int64_t c = 0; c < classes; ++c) dx[c * inner + i] -= static_cast<T>(spread) * (weight ? weight[c] : T{1});
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
  const auto positions = static_cast<size_t>(ce.logits.lines());
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {.run = [=](const Args& args) { run_loss<T>(ce, keeps_log_sums, args); },
            .workspace = positions * (sizeof(double) + (keeps_log_sums ? 0 : sizeof(T)))};
  });
}

Prepared prepare_grad(const NodeSpec& spec) {
  const CrossEntropy ce(spec, 1, 2, 4);
  ce.check_size(spec, 3, ce.logits.lines(), "log-sums");
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
