// Softmax cross entropy and its gradient (bodies: onnx_passes/functions/losses.cc). Loss and gradient read each logit
// once and store no probabilities; the gradient may overwrite the logits. Logits are stored as X, their gradients as
// DX.
#include <limits>

#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/rows.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/total.h"
#include "kernels/geometry/losses.h"
#include "kernels/math/reducers.h"
#include "kernels/math/vector_math.h"
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

// Finds the totals (support/total.h) and reports the first label that is not a class.
template <typename T>
struct LabelTotals {
  using Acc = Totals;
  CrossEntropy<T> ce;
  Totals* totals;
  Fault* fault;
  int32_t node, labels_input;

  // Positions, and classes that have a weight.
  int64_t values() const { return std::max(ce.logits.lines(), ce.weight ? ce.classes : 0); }

  __device__ Totals value(int64_t i) const {
    Totals own;
    if (i < ce.logits.lines()) {
      const int64_t y = ce.label(i);
      if (ce.counts(y)) {
        own.labels = static_cast<double>(ce.weight_of(y));
      } else if (y != ce.ignore_index) {
        own.wrong = i;
      }
    }
    if (ce.weight && i < ce.classes) own.classes = static_cast<double>(ce.weight[i]);
    return own;
  }
  __device__ static Totals merge(const Totals& a, const Totals& b) {
    return {a.labels + b.labels, a.classes + b.classes, a.wrong < b.wrong ? a.wrong : b.wrong};
  }
  __device__ void finish(Totals found) const {
    if (!ce.weight) found.classes = static_cast<double>(ce.classes);
    *totals = found;
    if (found.wrong < ce.logits.lines() && fault->node == 0) {
      *fault = {node, labels_input, found.wrong, ce.label(found.wrong)};
    }
  }
};

// Enqueues it. `totals` has room for the result, and for the partials after it.
template <typename T>
void find_totals(const Launch& launch, const CrossEntropy<T>& ce, int labels_input, Totals* totals) {
  const LabelTotals<T> source{ce, totals, launch.fault, launch.node, labels_input};
  enqueue_total(launch, "find_totals", source.values(), source, totals + 1);
}

// The number of Totals that find_totals writes.
int64_t num_totals(const CrossEntropySpec& ce) {
  return 1 + total_partials(std::max(ce.logits.lines(), ce.weight_input < 0 ? 0 : ce.classes));
}

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
  double loss = 0;
  if (ce.counts(y)) {
    if (ce.smoothing > 0) {
      double distance = 0;
      for_each_vector_in_row<kRowThreads>(x, line, ce.classes, stride,
                                          [&]<int kCount>(int64_t c, const StoredElements<kCount, X>& elements) {
                                            T sum = 0;
                                            for (int k = 0; k < kCount; ++k) {
                                              sum += ce.weight_of(c + k) * (l - widened(elements[k]));
                                            }
                                            distance += static_cast<double>(sum);
                                          });
      loss = ce.smoothing_per_class * Threads::merge(distance, Sum());
    }
    loss += (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y) * (l - of_label));
  }
  if (Threads::first() != 0) return;
  losses[position] = loss;
  if (log_sums) log_sums[position] = l;
}

// The loss, of those of all positions.
template <typename T>
struct LossTotal {
  using Acc = double;
  const double* losses;
  const Totals* totals;
  T* loss;
  bool mean;

  __device__ double value(int64_t i) const { return losses[i]; }
  __device__ static double merge(double a, double b) { return a + b; }
  __device__ void finish(double sum) const { *loss = static_cast<T>(mean ? mean_on_device(totals->labels, sum) : sum); }
};

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
  const bool counts = ce.counts(y);  // if false, dx is 0, not 0 times infinity
  const auto of_loss = static_cast<double>(*dloss);
  const double scale = ce.mean ? mean_on_device(totals->labels, of_loss) : of_loss;
  const double of_counted = counts ? scale * (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y)) : 0.0;
  const auto of_label = static_cast<T>(of_counted);
  const auto of_all = static_cast<T>(of_counted + scale * ce.smoothing_per_class * totals->classes);
  const auto of_class = static_cast<T>(scale * ce.smoothing_per_class);
  const T log_sum = log_sums[position];
  transform_vectors_in_row<kRowThreads>(
      x, dx, line, ce.logits.size, ce.logits.inner,
      [&]<int kCount>(int64_t c, const StoredElements<kCount, X>& logits) -> Elements<kCount, DX> {
        if (!counts) return {};
        T results[kCount];
        for (int k = 0; k < kCount; ++k) results[k] = of_all * math::exp_to_one(widened(logits[k]) - log_sum);
        const int label = y >= c && y < c + kCount ? static_cast<int>(y - c) : kCount;
        const int end = ce.classes < c + kCount ? static_cast<int>(ce.classes - c) : kCount;
        if (ce.smoothing > 0) {
          for (int k = 0; k < kCount; ++k) results[k] -= k < end ? of_class * ce.weight_of(c + k) : T{0};
        }
        if (label < kCount) {
          for (int k = 0; k < kCount; ++k) results[k] -= k == label ? of_label : T{0};
        }
        if (end < kCount) {
          for (int k = 0; k < kCount; ++k) results[k] = k < end ? results[k] : T{0};
        }
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
  return {
      {"SoftmaxCrossEntropy", supports_loss, loss, kDomain, "", InputCheck::kChecks},
      {"SoftmaxCrossEntropyGrad", supports_gradient, gradient, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cuda
