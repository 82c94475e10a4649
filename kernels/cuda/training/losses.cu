// Softmax cross entropy and its gradient (bodies: onnx_passes/functions/losses.cc). Loss and gradient read each logit
// once and store no probabilities; the gradient may overwrite the logits. Logits are stored as X, their gradients as
// DX.
#include <array>

#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/training/cross_entropy.h"
#include "kernels/math/reducers.h"
#include "kernels/math/vector_math.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// Computes each position's loss and, unless the pointer is null, log Σ exp of its logits.
template <typename X, int kRowThreads, typename T = Computed<X>>
__global__ void find_losses(CrossEntropy<T> ce, const X* __restrict__ x, T* log_sums, double* losses) {
  using Threads = RowThreads<kRowThreads>;
  using Exponentials = math::ExponentialSum<T>;
  const int64_t position = Threads::row(), stride = ce.logits.inner;
  if (position >= ce.logits.lines()) return;
  const int64_t line = ce.logits.line(position);
  // Their latency passes during the sums.
  const int64_t y = ce.label(position);
  const T of_label = ce.counts(y) ? widened(x[line + y * stride]) : T{0};
  auto acc = Exponentials::start();
  for_each_vector_in_row<kRowThreads>(x, line, ce.classes, stride,
                                      [&]<int kCount>(int64_t, const StoredElements<kCount, X>& elements) {
                                        T values[kCount];
                                        for (int k = 0; k < kCount; ++k) values[k] = widened(elements[k]);
                                        acc = Exponentials::add_all(acc, values);
                                      });
  acc = Threads::merge(acc, [](const auto& a, const auto& b) { return Exponentials::merge(a, b); });
  const T l = acc.largest + math::log(acc.sum);
  const auto logit = [](X element) { return widened(element); };
  const double loss = ce.counts(y) ? loss_of_row<kRowThreads>(ce, x, line, stride, y, of_label, l, logit) : 0;
  if (Threads::first() != 0) return;
  losses[position] = loss;
  if (log_sums) log_sums[position] = l;
}

template <typename X>
Prepared prepare_loss(const NodeSpec& spec) {
  using T = Computed<X>;
  const CrossEntropySpec ce = CrossEntropySpec::of_loss(spec);
  const int64_t positions = ce.logits.lines();
  const bool has_log_sums = spec.num_outputs() > 1 && spec.has_output(1);
  // The workspace holds the totals, each position's loss, and partial sums of these.
  const auto num_doubles = static_cast<size_t>(positions + total_partials(positions));
  const auto run = [=](const Launch& launch) {
    const CrossEntropy<T> of_run(ce, launch);
    auto* const totals = launch.scratch<Totals>();
    auto* const losses = reinterpret_cast<double*>(totals + num_totals(ce));
    find_totals(launch, of_run, ce.labels_input, totals);
    enqueue_rows(
        launch, "find_losses", positions, ce.classes, ce.logits.inner == 1,
        [](auto threads) { return find_losses<X, threads()>; }, of_run, launch.in<X>(0),
        has_log_sums ? launch.out<T>(1) : nullptr, losses);
    enqueue_total(launch, "add_losses", positions, LossTotal<T>{losses, totals, launch.out<T>(), ce.mean},
                  losses + positions);
  };
  return {.run = run,
          .workspace = static_cast<size_t>(num_totals(ce)) * sizeof(Totals) + num_doubles * sizeof(double),
          .explain = ce.explain()};
}

// The scores of each position's label: body in onnx_passes/functions/losses.cc.
template <typename X, int kRowThreads, typename T = Computed<X>>
__global__ void score_labels(CrossEntropy<T> ce, const X* __restrict__ x, T* log_p, T* rank) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t position = Threads::row(), stride = ce.logits.inner;
  if (position >= ce.logits.lines()) return;
  const int64_t line = ce.logits.line(position), y = ce.label(position);
  const bool counts = ce.counts(y);
  const T own = counts ? widened(x[line + y * stride]) : T{0};
  const auto scores =
      scores_of_row<kRowThreads>(ce, x, line, stride, y, own, [](X element) { return widened(element); });
  if (Threads::first() != 0) return;
  if (log_p) log_p[position] = counts ? own - scores.log_sum() : T{0};
  if (rank) rank[position] = counts ? scores.rank() : T{0};
}

template <typename X>
Prepared prepare_scores(const NodeSpec& spec) {
  using T = Computed<X>;
  const CrossEntropySpec ce = CrossEntropySpec::of_loss(spec);
  const std::array<bool, 2> makes = {spec.has_output(0), spec.num_outputs() > 1 && spec.has_output(1)};
  const auto run = [=](const Launch& launch) {
    const CrossEntropy<T> of_run(ce, launch);
    find_totals(launch, of_run, ce.labels_input, launch.scratch<Totals>());  // which reports labels that are no class
    enqueue_lines<T>(
        launch, "score_labels", ce.logits, [](auto threads) { return score_labels<X, threads()>; }, of_run,
        launch.in<X>(0), makes[0] ? launch.out<T>(0) : nullptr, makes[1] ? launch.out<T>(1) : nullptr);
  };
  return {.run = run, .workspace = static_cast<size_t>(num_totals(ce)) * sizeof(Totals), .explain = ce.explain()};
}

// Blocks on a multiprocessor that the registers of the next kernel leave room for; float64 needs more of them.
template <typename X, typename DX>
constexpr int kLeastBlocks = sizeof(X) > 4 || sizeof(DX) > 4 ? 1 : 4;

// dx = share exp(x - l), minus the parts of the label and of smoothing; 0 in the padding after the classes.
template <typename X, typename DX, int kRowThreads, typename T = Computed<X>>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<X, DX>)
    differentiate_losses(CrossEntropy<T> ce, const Fault* guard, const T* dloss, const X* x, const T* log_sums,
                         const Totals* totals, DX* dx) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t position = Threads::row();
  if (stops(guard) || position >= ce.logits.lines()) return;
  const int64_t y = ce.label(position), line = ce.logits.line(position);
  const RowGradient<T> gradient(ce, *totals, *dloss, y);
  const T log_sum = log_sums[position];
  transform_vectors_in_row<kRowThreads>(
      x, dx, line, ce.logits.size, ce.logits.inner,
      [&]<int kCount>(int64_t c, const StoredElements<kCount, X>& logits) -> Elements<kCount, DX> {
        if (!gradient.counts) return {};
        T results[kCount];
        for (int k = 0; k < kCount; ++k) results[k] = widened(logits[k]);
        gradient.differentiate(ce, c, log_sum, results);
        Elements<kCount, DX> stored;
        for (int k = 0; k < kCount; ++k) stored[k] = math::convert<DX>(results[k]);
        return stored;
      });
}

template <typename X, typename DX>
Prepared prepare_gradient(const NodeSpec& spec) {
  using T = Computed<X>;
  const CrossEntropySpec ce = CrossEntropySpec::of_gradient(spec);
  const bool is_empty = spec.out_size() == 0;
  const auto run = [=](const Launch& launch) {
    const CrossEntropy<T> of_run(ce, launch);
    auto* const totals = launch.scratch<Totals>();
    find_totals(launch, of_run, ce.labels_input, totals);
    if (is_empty) return;
    enqueue_lines<T>(
        launch, "differentiate_losses", ce.logits, [](auto threads) { return differentiate_losses<X, DX, threads()>; },
        of_run, guard_of(launch, 2, 1), launch.in<T>(0), launch.in<X>(1), launch.in<T>(3), totals, launch.out<DX>());
  };
  std::vector<InPlace> in_place;
  if (sizeof(X) == sizeof(DX)) in_place = {{0, 1}};
  return {.run = run,
          .workspace = num_totals(ce) * sizeof(Totals),
          .in_place = std::move(in_place),
          .explain = ce.explain()};
}

bool supports_loss(const NodeSpec& spec) { return is_stored(spec.in_type(0)) && is_label(spec.in_type(1)); }
bool supports_gradient(const NodeSpec& spec) {
  return is_stored_pair(spec.in_type(1), spec.out_type()) && is_label(spec.in_type(2));
}

}  // namespace

std::vector<Kernel> loss_kernels() {
  const auto loss = [](const NodeSpec& spec) {
    return dispatch_stored(spec.in_type(0), [&]<typename X>(X) { return prepare_loss<X>(spec); });
  };
  const auto gradient = [](const NodeSpec& spec) {
    return dispatch_stored_pair(spec.in_type(1), spec.out_type(),
                                [&]<typename X, typename DX>(X, DX) { return prepare_gradient<X, DX>(spec); });
  };
  const auto scores = [](const NodeSpec& spec) {
    return dispatch_stored(spec.in_type(0), [&]<typename X>(X) { return prepare_scores<X>(spec); });
  };
  return {
      {"LabelScores", supports_loss, scores, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropy", supports_loss, loss, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropyGrad", supports_gradient, gradient, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cuda
