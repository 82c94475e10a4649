// Softmax cross entropy and its gradient (bodies: onnx_passes/functions/losses.cc). Loss and gradient read each logit
// once and store no probabilities; the gradient may overwrite the logits. Logits are stored as X, their gradients as
// DX.
#include <limits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/losses.h"
#include "kernels/math/reducers.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

// The parameters of the kernels, from the node and a run.
template <typename T>
struct CrossEntropy {
  AxisView logits;
  int64_t classes, ignore_index;
  double smoothing, smoothing_per_class;
  bool mean, int64_labels;
  const void* labels;
  const T* weight;  // per class, or null

  CrossEntropy(const CrossEntropySpec& spec, const Launch& launch)
      : logits(spec.logits),
        classes(spec.classes),
        ignore_index(spec.ignore_index),
        smoothing(spec.smoothing),
        smoothing_per_class(spec.smoothing_per_class()),
        mean(spec.mean),
        int64_labels(spec.int64_labels),
        labels(launch.inputs[spec.labels_input]),
        weight(spec.weight_input < 0 ? nullptr : launch.in<T>(spec.weight_input)) {}

  __device__ int64_t label(int64_t position) const {
    return int64_labels ? static_cast<const int64_t*>(labels)[position] : static_cast<const int32_t*>(labels)[position];
  }
  // A label that is not a class is reported; its position does not count.
  __device__ bool counts(int64_t y) const { return y != ignore_index && y >= 0 && y < classes; }
  __device__ T weight_of(int64_t c) const { return weight ? weight[c] : T{1}; }
};

// mean_over (kernels/geometry/losses.h) on the device.
__device__ inline double mean_on_device(double count, double sum) { return count == 0 ? 0 : sum / count; }

// Sums over all positions or classes that every block of later kernels reads.
struct Totals {
  double labels = 0;                                    // Σ weight of the label, over the positions that count
  double classes = 0;                                   // Σ weight of the class
  int64_t wrong = std::numeric_limits<int64_t>::max();  // first position whose label is not a class
};

// One block.
template <typename T>
__global__ void find_totals(CrossEntropy<T> ce, Totals* totals, Fault* fault, int32_t node, int32_t labels_input) {
  Totals mine{0, 0, std::numeric_limits<int64_t>::max()};
  for (int64_t i = threadIdx.x; i < ce.logits.lines(); i += kThreads) {
    const int64_t y = ce.label(i);
    if (ce.counts(y)) {
      mine.labels += static_cast<double>(ce.weight_of(y));
    } else if (y != ce.ignore_index && i < mine.wrong) {
      mine.wrong = i;
    }
  }
  if (ce.weight) {
    for (int64_t c = threadIdx.x; c < ce.classes; c += kThreads) mine.classes += static_cast<double>(ce.weight[c]);
  } else if (threadIdx.x == 0) {
    mine.classes = static_cast<double>(ce.classes);
  }
  mine = merge_block<kThreads>(mine, [](const Totals& a, const Totals& b) {
    return Totals{a.labels + b.labels, a.classes + b.classes, a.wrong < b.wrong ? a.wrong : b.wrong};
  });
  if (threadIdx.x != 0) return;
  *totals = mine;
  if (mine.wrong < ce.logits.lines() && fault->node == 0)
    *fault = {node, labels_input, mine.wrong, ce.label(mine.wrong)};
}

// Computes each position's loss and, unless the pointer is null, log Σ exp of its logits.
template <typename X, int kRowThreads, typename T = Computed<X>>
__global__ void find_losses(CrossEntropy<T> ce, const X* __restrict__ x, T* log_sums, double* losses) {
  using Threads = RowThreads<kRowThreads>;
  using Exponentials = math::ExponentialSum<T>;
  const int64_t position = Threads::row(), stride = ce.logits.inner;
  if (position >= ce.logits.lines()) return;
  const int64_t line = ce.logits.line(position);
  auto acc = Exponentials::start();
  for_each_in_row<kRowThreads>(x, line, ce.classes, stride,
                               [&](int64_t, X value) { acc = Exponentials::add(acc, widened(value)); });
  acc = Threads::merge(acc, [](const auto& a, const auto& b) { return Exponentials::merge(a, b); });
  const T l = acc.largest + math::log(acc.sum);
  const int64_t y = ce.label(position);
  double loss = 0;
  if (ce.counts(y)) {
    if (ce.smoothing > 0) {
      double distance = 0;
      for_each_in_row<kRowThreads>(x, line, ce.classes, stride, [&](int64_t c, X value) {
        distance += static_cast<double>(ce.weight_of(c) * (l - widened(value)));
      });
      loss = ce.smoothing_per_class * Threads::merge(distance, Sum());
    }
    loss += (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y) * (l - widened(x[line + y * stride])));
  }
  if (Threads::first() != 0) return;
  losses[position] = loss;
  if (log_sums) log_sums[position] = l;
}

// One block.
template <typename T>
__global__ void add_losses(int64_t positions, bool mean, const double* losses, const Totals* totals, T* loss) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < positions; i += kThreads) sum += losses[i];
  sum = merge_block<kThreads>(sum, Sum());
  if (threadIdx.x == 0) *loss = static_cast<T>(mean ? mean_on_device(totals->labels, sum) : sum);
}

template <typename X>
Prepared prepare_loss(const NodeSpec& spec) {
  using T = Computed<X>;
  const CrossEntropySpec ce = CrossEntropySpec::of_loss(spec);
  const int64_t positions = ce.logits.lines();
  const bool has_log_sums = spec.num_outputs() > 1 && spec.has_output(1);
  const auto run = [=](const Launch& launch) {
    const CrossEntropy<T> of_run(ce, launch);
    auto* const totals = launch.scratch<Totals>();
    auto* const losses = reinterpret_cast<double*>(totals + 1);
    enqueue(launch, "find_totals", find_totals<T>, 1, kThreads, 0, of_run, totals, launch.fault, launch.node,
            ce.labels_input);
    enqueue_rows(
        launch, "find_losses", positions, ce.classes, ce.logits.inner == 1,
        [](auto threads) { return find_losses<X, threads()>; }, of_run, launch.in<X>(0),
        has_log_sums ? launch.out<T>(1) : nullptr, losses);
    enqueue(launch, "add_losses", add_losses<T>, 1, kThreads, 0, positions, ce.mean, losses, totals, launch.out<T>());
  };
  return {.run = run,
          .workspace = sizeof(Totals) + static_cast<size_t>(positions) * sizeof(double),
          .explain = ce.explain()};
}

// Blocks on a multiprocessor that the registers of the next kernel leave room for; float64 needs more of them.
template <typename X, typename DX>
constexpr int kLeastBlocks = sizeof(X) > 4 || sizeof(DX) > 4 ? 1 : 5;

// dx = share exp(x - l), minus the parts of the label and of smoothing; 0 in the padding after the classes.
template <typename X, typename DX, int kRowThreads, typename T = Computed<X>>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<X, DX>)
    differentiate_losses(CrossEntropy<T> ce, const Fault* guard, const T* dloss, const X* x, const T* log_sums,
                         const Totals* totals, DX* dx) {
  using Threads = RowThreads<kRowThreads>;
  const int64_t position = Threads::row();
  if (stops(guard) || position >= ce.logits.lines()) return;
  const int64_t y = ce.label(position), line = ce.logits.line(position);
  const bool counts = ce.counts(y);  // if false, dx is 0, not 0 times infinity
  const auto of_loss = static_cast<double>(*dloss);
  const double scale = ce.mean ? mean_on_device(totals->labels, of_loss) : of_loss;
  const double of_counted = counts ? scale * (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y)) : 0.0;
  const auto of_label = static_cast<T>(of_counted);
  const auto of_all = static_cast<T>(of_counted + scale * ce.smoothing_per_class * totals->classes);
  const auto of_class = static_cast<T>(scale * ce.smoothing_per_class);
  const T log_sum = log_sums[position];
  transform_row<kRowThreads>(x, dx, line, ce.logits.size, ce.logits.inner, [&](int64_t c, X value) {
    if (!counts || c >= ce.classes) return DX(0.0f);
    T result = of_all * math::exp(widened(value) - log_sum);
    if (c == y) result -= of_label;
    if (ce.smoothing > 0) result -= of_class * ce.weight_of(c);
    return math::convert<DX>(result);
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
    enqueue(launch, "find_totals", find_totals<T>, 1, kThreads, 0, of_run, totals, launch.fault, launch.node,
            ce.labels_input);
    if (is_empty) return;
    enqueue_lines<T>(
        launch, "differentiate_losses", ce.logits, [](auto threads) { return differentiate_losses<X, DX, threads()>; },
        of_run, guard_of(launch, 2, 1), launch.in<T>(0), launch.in<X>(1), launch.in<T>(3), totals, launch.out<DX>());
  };
  std::vector<InPlace> in_place;
  if (sizeof(X) == sizeof(DX)) in_place = {{0, 1}};
  return {.run = run, .workspace = sizeof(Totals), .in_place = std::move(in_place), .explain = ce.explain()};
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
  return {
      {"SoftmaxCrossEntropy", supports_loss, loss, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropyGrad", supports_gradient, gradient, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cuda
