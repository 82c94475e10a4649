// Softmax cross entropy as one operation (bodies: functions/losses.cc). The loss reads each logit twice, the gradient
// once, and neither stores probabilities.
#include <algorithm>
#include <optional>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/cpu/training/cross_entropy.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

// The partition of all positions into pieces, and of the pieces into shares, one per thread.
struct PositionBlocks {
  int64_t classes, inner, per_outer, count, shares;

  PositionBlocks(const AxisView& logits, int threads)
      : classes(logits.size),
        inner(logits.inner),
        per_outer((inner + kPositionLanes - 1) / kPositionLanes),
        count(logits.outer * per_outer),
        shares(std::clamp<int64_t>(count * size() / (kElementGrain / 4), 1, std::max(threads, 1))) {}

  // Number of elements of the largest piece. In scratch memory the rows of a piece are `lanes()` apart.
  int64_t size() const { return classes * lanes(); }
  int64_t lanes() const { return inner == 1 ? 1 : kPositionLanes; }

  PositionBlock operator[](int64_t i) const {
    const int64_t outer = i / per_outer, first = i % per_outer * kPositionLanes;
    return {outer * classes * inner + first, outer * inner + first, std::min(kPositionLanes, inner - first)};
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

// Converts bfloat16 logits into `scratch`; returns float32 logits in place.
template <typename T>
Strided<const T> logits_of(const PositionBlock& piece, const PositionBlocks& pieces, const LinesIn<T>& logits,
                           T* scratch) {
  const int64_t inner = pieces.inner;
  if (inner == 1) return {logits.get(piece.offset, pieces.classes, scratch), 1};
  if (!logits.narrow()) return {logits.get(piece.offset, 0, nullptr), inner};
  for (int64_t c = 0; c < pieces.classes; ++c) {
    logits.get(piece.offset + c * inner, piece.lanes, scratch + c * kPositionLanes);
  }
  return {scratch, kPositionLanes};
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
  const Strided<T> dx{gradient.place(piece.offset, scratch), gradient.narrow() ? kPositionLanes : pieces.inner};
  vectorized([&] { gradient_of_piece(ce, scales, launch, piece, all, x, launch.in<T>(3) + piece.position, dx); });
  for (int64_t c = 0; gradient.narrow() && c < pieces.classes; ++c) {
    gradient.put(piece.offset + c * pieces.inner, piece.lanes, dx.data + c * dx.stride);
  }
}

// Scratch memory: one piece of logits per share, which the gradients overwrite.
template <typename T>
void run_grad(const CrossEntropy& ce, const PositionBlocks& pieces, bool narrow_logits, bool narrow_gradient,
              const Launch& launch) {
  const std::optional<double> total_weight = ce.check_and_sum_weights<T>(launch);
  if (!total_weight) return;
  const GradientScales<T> scales = gradient_scales(ce, ce.weights<T>(launch), *total_weight, *launch.in<T>(0));
  const LinesIn<T> logits(launch.inputs[1], narrow_logits);
  const LinesOut<T> gradient(launch.outputs[0], narrow_gradient);
  pieces.for_each([&](const PositionBlock& piece, int64_t share) {
    T* scratch = launch.scratch<T>() + share * pieces.size();
    if (pieces.inner == 1) return gradient_of_line(ce, scales, launch, piece, logits, gradient, scratch);
    gradient_of_lanes(ce, scales, launch, piece, pieces, logits, gradient, scratch);
  });
}

// The scores of each position's label. Scratch memory: a row of logits per share.
template <typename T>
void run_scores(const CrossEntropy& ce, int64_t shares, bool narrow, const Launch& launch) {
  if (!ce.check_and_sum_weights<T>(launch)) return;
  const LinesIn<T> logits(launch.inputs[0], narrow);
  T *const log_p = launch.out<T>(0), *const rank = launch.out<T>(1), *const scratch = launch.scratch<T>();
  const int64_t n = ce.logits.size, stride = ce.logits.inner;
  const auto score = [&](int64_t position, T* row) {
    const int64_t y = ce.label(launch, position), line = ce.logits.line(position);
    const bool counts = y != ce.ignore_index;
    const T* x = row;
    if (stride == 1) {
      x = logits.get(line, n, row);
    } else {
      for (int64_t c = 0; c < n; ++c) row[c] = *logits.get(line + c * stride, 1, row + c);
    }
    vectorized([&] {
      if (log_p) log_p[position] = counts ? x[y] - log_sum_exp(n, x) : T{0};
      if (rank) rank[position] = counts ? rank_of(n, x, y) : T{0};
    });
  };
  parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t i = ce.logits.lines() * share / shares; i < ce.logits.lines() * (share + 1) / shares; ++i)
        score(i, scratch + share * n);
    }
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

Prepared prepare_scores(const NodeSpec& spec) {
  const CrossEntropy ce(CrossEntropySpec::of_loss(spec));
  const int64_t shares = PositionBlocks(ce.logits, spec.threads()).shares;
  const bool narrow = is_narrow(spec.in_type());
  return dispatch_float(computed_type(spec.in_type()), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {.run = [=](const Launch& launch) { run_scores<T>(ce, shares, narrow, launch); },
            .workspace = static_cast<size_t>(shares * ce.logits.size) * sizeof(T),
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
      {"LabelScores", supports_loss, prepare_scores, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropy", supports_loss, prepare_loss, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropyGrad", supports_grad, prepare_grad, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cpu
