// Softmax cross entropy as one operation (bodies: functions/losses.cc). The loss reads each logit twice, the gradient
// once, and neither stores probabilities.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/losses.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

struct CrossEntropy : CrossEntropySpec {
  explicit CrossEntropy(const CrossEntropySpec& spec) : CrossEntropySpec(spec) {}

  int64_t label(const Launch& launch, int64_t position) const {
    return int64_labels ? launch.in<int64_t>(labels_input)[position] : launch.in<int32_t>(labels_input)[position];
  }
  template <typename T>
  const T* weights(const Launch& launch) const {
    return weight_input < 0 ? nullptr : launch.in<T>(weight_input);
  }

  // Returns the sum of the weights of the labels that count. Reports a label that is not a class and returns nothing.
  template <typename T>
  std::optional<double> check_and_sum_weights(const Launch& launch) const {
    const T* weight = weights<T>(launch);
    double total = 0;
    for (int64_t i = 0; i < logits.lines(); ++i) {
      const int64_t y = label(launch, i);
      if (y == ignore_index) continue;
      if (y < 0 || y >= logits.size) {
        launch.report(labels_input, i, y);
        return std::nullopt;
      }
      total += weight ? static_cast<double>(weight[y]) : 1.0;
    }
    return total;
  }
};

// Neighbouring positions that are computed together if the class axis is not the last.
constexpr int64_t kLanes = 64;

// `lanes` positions from `position` on; their first logits start at `offset`.
struct PositionBlock {
  int64_t offset, position, lanes;
};

// The partition of all positions into pieces, and of the pieces into shares, one per thread.
struct PositionBlocks {
  int64_t classes, inner, per_outer, count, shares;

  PositionBlocks(const AxisView& logits, int threads)
      : classes(logits.size),
        inner(logits.inner),
        per_outer((inner + kLanes - 1) / kLanes),
        count(logits.outer * per_outer),
        shares(std::clamp<int64_t>(count * size() / (kElementGrain / 4), 1, std::max(threads, 1))) {}

  // Number of elements of the largest piece. In scratch memory the rows of a piece are `lanes()` apart.
  int64_t size() const { return classes * lanes(); }
  int64_t lanes() const { return inner == 1 ? 1 : kLanes; }

  PositionBlock operator[](int64_t i) const {
    const int64_t outer = i / per_outer, first = i % per_outer * kLanes;
    return {outer * classes * inner + first, outer * inner + first, std::min(kLanes, inner - first)};
  }

  // Calls f(piece, share) for every piece.
  template <typename F>
  void for_each(const F& f) const {
    parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share) {
        for (int64_t i = count * share / shares; i < count * (share + 1) / shares; ++i) f((*this)[i], share);
      }
    });
  }
};

// The logits of a piece, or their gradients. Consecutive classes of a position are `stride` elements apart.
template <typename T>
struct Strided {
  T* data;
  int64_t stride;
};

// Converts bfloat16 logits into `scratch`; returns float32 logits in place.
template <typename T>
Strided<const T> logits_of(const PositionBlock& piece, const PositionBlocks& pieces, const LinesIn<T>& logits,
                           T* scratch) {
  const int64_t inner = pieces.inner;
  if (inner == 1) return {logits.get(piece.offset, pieces.classes, scratch), 1};
  if (!logits.narrow()) return {logits.get(piece.offset, 0, nullptr), inner};
  for (int64_t c = 0; c < pieces.classes; ++c) {
    logits.get(piece.offset + c * inner, piece.lanes, scratch + c * kLanes);
  }
  return {scratch, kLanes};
}

// log Σ exp x. Each of kLanes partial results waits for the one before it alone.
template <typename T>
T log_sum_exp(int64_t n, const T* x) {
  const int64_t whole = n / kLanes * kLanes;
  T most[kLanes], sums[kLanes];
  std::fill(most, most + kLanes, -std::numeric_limits<T>::infinity());
  std::fill(sums, sums + kLanes, T{0});
  for (int64_t c = 0; c < whole; c += kLanes) {
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) most[i] = x[c + i] > most[i] ? x[c + i] : most[i];
  }
  T row_max = *std::max_element(most, most + kLanes);
  for (int64_t c = whole; c < n; ++c) row_max = x[c] > row_max ? x[c] : row_max;
  for (int64_t c = 0; c < whole; c += kLanes) {
#pragma omp simd
    for (int64_t i = 0; i < kLanes; ++i) sums[i] += math::exp(x[c + i] - row_max);
  }
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = whole; c < n; ++c) sum += math::exp(x[c] - row_max);
  for (const T lane : sums) sum += lane;
  return row_max + std::log(sum);
}

// log Σ exp x for `lanes` neighbouring positions; consecutive classes are `stride` apart.
template <typename T>
void log_sum_exp_lanes(int64_t n, const T* x, int64_t stride, int64_t lanes, T* result) {
  T row_max[kLanes], sum[kLanes];
  std::fill(row_max, row_max + lanes, -std::numeric_limits<T>::infinity());
  std::fill(sum, sum + lanes, T{0});
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) row_max[i] = row[i] > row_max[i] ? row[i] : row_max[i];
  }
  for (int64_t c = 0; c < n; ++c) {
    const T* row = x + c * stride;
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) sum[i] += math::exp(row[i] - row_max[i]);
  }
  for (int64_t i = 0; i < lanes; ++i) result[i] = row_max[i] + std::log(sum[i]);
}

// Σ_c w[c] (l - x[c]); classes are `stride` apart.
template <typename T>
double weighted_distance(int64_t n, const T* x, int64_t stride, T l, const T* weight) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += static_cast<double>((weight ? weight[c] : T{1}) * (l - x[c * stride]));
  return sum;
}

template <typename T>
void loss_of_piece(const CrossEntropy& ce, const Launch& launch, const PositionBlock& piece, Strided<const T> logits,
                   T* l, double* losses) {
  const int64_t classes = ce.logits.size, stride = logits.stride;
  const T *x = logits.data, *weight = ce.weights<T>(launch);
  if (ce.logits.inner == 1) {
    *l = log_sum_exp(classes, x);
  } else {
    log_sum_exp_lanes(classes, x, stride, piece.lanes, l);
  }
  for (int64_t i = 0; i < piece.lanes; ++i) {
    const int64_t y = ce.label(launch, piece.position + i);
    losses[i] = 0;
    if (y == ce.ignore_index) continue;
    losses[i] = (1 - ce.smoothing) * static_cast<double>((weight ? weight[y] : T{1}) * (l[i] - x[y * stride + i]));
    if (ce.smoothing > 0)
      losses[i] += ce.smoothing_per_class() * weighted_distance(classes, x + i, stride, l[i], weight);
  }
}

// Scratch memory: the loss of each position, to be summed in order; its log-sum, unless that is an output; one piece of
// logits per share.
template <typename T>
void run_loss(const CrossEntropy& ce, const PositionBlocks& pieces, bool narrow, bool keeps_log_sums,
              const Launch& launch) {
  const std::optional<double> total_weight = ce.check_and_sum_weights<T>(launch);
  if (!total_weight) return;
  double* losses = launch.scratch<double>();
  T* after_losses = reinterpret_cast<T*>(losses + ce.logits.lines());
  T* log_sums = keeps_log_sums ? launch.out<T>(1) : after_losses;
  T* widened = after_losses + (keeps_log_sums ? 0 : ce.logits.lines());
  const LinesIn<T> logits(launch.inputs[0], narrow);
  pieces.for_each([&](const PositionBlock& piece, int64_t share) {
    const auto x = logits_of(piece, pieces, logits, widened + share * pieces.size());
    vectorized([&] { loss_of_piece(ce, launch, piece, x, log_sums + piece.position, losses + piece.position); });
  });
  double sum = 0;
  for (int64_t i = 0; i < ce.logits.lines(); ++i) sum += losses[i];
  *launch.out<T>(0) = static_cast<T>(ce.mean ? mean_over(*total_weight, sum) : sum);
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

// Factors of the gradients of a piece.
template <typename T>
struct GradientScales {
  double scale;           // scale of a position that counts
  double weighting;       // sum of the weights of all classes
  T smoothing_per_class;  // each class's share of label smoothing
};

template <typename T>
std::optional<GradientScales<T>> gradient_scales(const CrossEntropy& ce, const Launch& launch) {
  const std::optional<double> total_weight = ce.check_and_sum_weights<T>(launch);
  if (!total_weight) return std::nullopt;
  const auto dloss = static_cast<double>(*launch.in<T>(0));
  const double scale = ce.mean ? mean_over(*total_weight, dloss) : dloss;
  const T* weight = ce.weights<T>(launch);
  double weighting = static_cast<double>(ce.logits.size);
  if (weight && ce.smoothing > 0) weighting = std::accumulate(weight, weight + ce.logits.size, 0.0);
  return GradientScales<T>{scale, weighting, static_cast<T>(scale * ce.smoothing_per_class())};
}

struct Classes {
  int64_t begin, count;
  bool has(int64_t c) const { return c >= begin && c < begin + count; }
};

// x and dx start at the first of `classes`. dx may be x if the strides are equal.
template <typename T>
void gradient_of_piece(const CrossEntropy& ce, const GradientScales<T>& scales, const Launch& launch,
                       const PositionBlock& piece, const Classes& classes, Strided<const T> x, const T* l,
                       Strided<T> dx) {
  const T* weight = ce.weights<T>(launch);
  T label_share[kLanes] = {}, softmax_share[kLanes] = {};
  for (int64_t i = 0; i < piece.lanes; ++i) {
    const int64_t y = ce.label(launch, piece.position + i);
    if (y == ce.ignore_index) continue;
    const double share = scales.scale * (1 - ce.smoothing) * (weight ? static_cast<double>(weight[y]) : 1.0);
    label_share[i] = static_cast<T>(share);
    softmax_share[i] = static_cast<T>(share + scales.scale * ce.smoothing_per_class() * scales.weighting);
  }
  if (ce.logits.inner == 1) {
    scaled_softmax(classes.count, x.data, *l, *softmax_share, dx.data);
  } else {
    for (int64_t c = 0; c < classes.count; ++c) {
      scaled_softmax_lanes(piece.lanes, x.data + c * x.stride, l, softmax_share, dx.data + c * dx.stride);
    }
  }
  if (weight) weight += classes.begin;
  for (int64_t i = 0; i < piece.lanes; ++i) {
    const int64_t y = ce.label(launch, piece.position + i);
    T* at = dx.data + i;
    if (y == ce.ignore_index) {
      for (int64_t c = 0; c < classes.count; ++c) at[c * dx.stride] = 0;  // not 0 times infinity
      continue;
    }
    if (classes.has(y)) at[(y - classes.begin) * dx.stride] -= label_share[i];
    if (ce.smoothing == 0) continue;
    for (int64_t c = 0; c < classes.count; ++c)
      at[c * dx.stride] -= scales.smoothing_per_class * (weight ? weight[c] : T{1});
  }
}

// Processes contiguous rows by blocks of classes: the converted block stays in the L1 cache.
template <typename T>
void gradient_of_line(const CrossEntropy& ce, const GradientScales<T>& scales, const Launch& launch,
                      const PositionBlock& piece, const LinesIn<T>& logits, const LinesOut<T>& gradient, T* scratch) {
  const bool narrow = logits.narrow() || gradient.narrow();
  const int64_t at_once = narrow ? 4096 : ce.logits.size;
  for (Classes classes{0, 0}; classes.begin < ce.logits.size; classes.begin += at_once) {
    classes.count = std::min(at_once, ce.logits.size - classes.begin);
    const int64_t offset = piece.offset + classes.begin;
    const Strided<const T> x{logits.get(offset, classes.count, scratch), 1};
    const Strided<T> dx{gradient.place(offset, scratch), 1};
    vectorized([&] { gradient_of_piece(ce, scales, launch, piece, classes, x, launch.in<T>(3) + piece.position, dx); });
    gradient.put(offset, classes.count, dx.data);
  }
}

template <typename T>
void gradient_of_lanes(const CrossEntropy& ce, const GradientScales<T>& scales, const Launch& launch,
                       const PositionBlock& piece, const PositionBlocks& pieces, const LinesIn<T>& logits,
                       const LinesOut<T>& gradient, T* scratch) {
  const Classes all{0, pieces.classes};
  const auto x = logits_of(piece, pieces, logits, scratch);
  const Strided<T> dx{gradient.place(piece.offset, scratch), gradient.narrow() ? kLanes : pieces.inner};
  vectorized([&] { gradient_of_piece(ce, scales, launch, piece, all, x, launch.in<T>(3) + piece.position, dx); });
  for (int64_t c = 0; gradient.narrow() && c < pieces.classes; ++c) {
    gradient.put(piece.offset + c * pieces.inner, piece.lanes, dx.data + c * dx.stride);
  }
}

// Scratch memory: one piece of logits per share, which the gradients overwrite.
template <typename T>
void run_grad(const CrossEntropy& ce, const PositionBlocks& pieces, bool narrow_logits, bool narrow_gradient,
              const Launch& launch) {
  const auto scales = gradient_scales<T>(ce, launch);
  if (!scales) return;
  const LinesIn<T> logits(launch.inputs[1], narrow_logits);
  const LinesOut<T> gradient(launch.outputs[0], narrow_gradient);
  pieces.for_each([&](const PositionBlock& piece, int64_t share) {
    T* scratch = launch.scratch<T>() + share * pieces.size();
    if (pieces.inner == 1) return gradient_of_line(ce, *scales, launch, piece, logits, gradient, scratch);
    gradient_of_lanes(ce, *scales, launch, piece, pieces, logits, gradient, scratch);
  });
}

// Whether the node is a variant that only another device's plan has (pad_classes.cc).
bool is_variant(const NodeSpec& spec) { return spec.node().has_attr("classes"); }

// Whether types are supported: logits, their gradients, or both may be bfloat16
// (kernels/lowering/storage/narrow_storage.cc).
bool supports_loss(const NodeSpec& spec) {
  return computes_in_one_type(spec, {0}, {}) && is_label(spec.in_type(1)) && !is_variant(spec);
}
bool supports_grad(const NodeSpec& spec) {
  return computes_in_one_type(spec, {1}, {0}) && is_label(spec.in_type(2)) && !is_variant(spec);
}

Prepared prepare_loss(const NodeSpec& spec) {
  const CrossEntropy ce(CrossEntropySpec::of_loss(spec));
  const PositionBlocks pieces(ce.logits, spec.threads());
  const bool keeps_log_sums = spec.has_output(1), narrow = is_narrow(spec.in_type());
  const int64_t positions = ce.logits.lines();
  const int64_t elements = (keeps_log_sums ? 0 : positions) + (narrow ? pieces.shares * pieces.size() : 0);
  return dispatch_float(computed_type(spec.in_type()), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {.run = [=](const Launch& launch) { run_loss<T>(ce, pieces, narrow, keeps_log_sums, launch); },
            .workspace = static_cast<size_t>(positions) * sizeof(double) + static_cast<size_t>(elements) * sizeof(T),
            .explain = ce.explain()};
  });
}

Prepared prepare_grad(const NodeSpec& spec) {
  const CrossEntropy ce(CrossEntropySpec::of_gradient(spec));
  const PositionBlocks pieces(ce.logits, spec.threads());
  const bool narrow_logits = is_narrow(spec.in_type(1)), narrow_gradient = is_narrow(spec.out_type());
  const int64_t elements = narrow_logits || narrow_gradient ? pieces.shares * pieces.size() : 0;
  return dispatch_float(computed_type(spec.in_type(1)), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {.run = [=](const Launch& launch) { run_grad<T>(ce, pieces, narrow_logits, narrow_gradient, launch); },
            .workspace = static_cast<size_t>(elements) * sizeof(T),
            .in_place = {{0, 1}},
            .explain = ce.explain()};
  });
}

}  // namespace

std::vector<Kernel> loss_kernels() {
  return {
      {"SoftmaxCrossEntropy", supports_loss, prepare_loss, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropyGrad", supports_grad, prepare_grad, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cpu
