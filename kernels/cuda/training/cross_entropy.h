// The softmax cross entropy of some positions: what the kernels of the losses (losses.cu) and of a loss with the
// product before it (products/linear_cross_entropy.cu) have in common. For kernel files.
#pragma once

#include <limits>

#include "kernels/cuda/support/row_elements.h"
#include "kernels/cuda/support/total.h"
#include "kernels/geometry/losses.h"
#include "kernels/math/reducers.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cuda {

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
inline int64_t num_totals(const CrossEntropySpec& ce) {
  return 1 + total_partials(std::max(ce.logits.lines(), ce.weight_input < 0 ? 0 : ce.classes));
}

// What a position's logits say of its label y, whose logit is `own`.
template <typename T>
struct RowScores {
  using Exponentials = math::ExponentialSum<T>;
  typename Exponentials::Acc exponentials = Exponentials::start();
  int64_t before = 0;  // classes of larger logits, and of equal ones with smaller numbers
  bool has_nan = false;

  // Adds the logits of neighbouring classes from c on.
  template <int kCount>
  __device__ void add(const T (&x)[kCount], int64_t c, int64_t y, T own) {
    exponentials = Exponentials::add_all(exponentials, x);
    for (int k = 0; k < kCount; ++k) {
      before += c + k < y ? x[k] >= own : x[k] > own;
      has_nan = has_nan || x[k] != x[k];
    }
  }
  __device__ static RowScores merge(const RowScores& a, const RowScores& b) {
    return {Exponentials::merge(a.exponentials, b.exponentials), a.before + b.before, a.has_nan || b.has_nan};
  }
  __device__ T log_sum() const { return exponentials.largest + math::log(exponentials.sum); }
  __device__ T rank() const { return has_nan ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(before); }
};

// Returns the scores of the row x[line + c stride] to each of its threads; logit(x) is a logit.
template <int kRowThreads, typename T, typename X, typename F>
__device__ RowScores<T> scores_of_row(const CrossEntropy<T>& ce, const X* x, int64_t line, int64_t stride, int64_t y,
                                      T own, const F& logit) {
  RowScores<T> scores;
  for_each_vector_in_row<kRowThreads>(x, line, ce.classes, stride,
                                      [&]<int kCount>(int64_t c, const StoredElements<kCount, X>& elements) {
                                        T values[kCount];
                                        for (int k = 0; k < kCount; ++k) values[k] = logit(elements[k]);
                                        scores.add(values, c, y, own);
                                      });
  return RowThreads<kRowThreads>::merge(scores, [](const auto& a, const auto& b) { return RowScores<T>::merge(a, b); });
}

// Returns the loss of a row whose label counts to each of its threads; l: log Σ exp of its logits.
template <int kRowThreads, typename T, typename X, typename F>
__device__ double loss_of_row(const CrossEntropy<T>& ce, const X* x, int64_t line, int64_t stride, int64_t y, T own,
                              T l, const F& logit) {
  double loss = 0;
  if (ce.smoothing > 0) {
    double distance = 0;
    for_each_vector_in_row<kRowThreads>(x, line, ce.classes, stride,
                                        [&]<int kCount>(int64_t c, const StoredElements<kCount, X>& elements) {
                                          T sum = 0;
                                          for (int k = 0; k < kCount; ++k) {
                                            sum += ce.weight_of(c + k) * (l - logit(elements[k]));
                                          }
                                          distance += static_cast<double>(sum);
                                        });
    loss = ce.smoothing_per_class * RowThreads<kRowThreads>::merge(distance, Sum());
  }
  return loss + (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y) * (l - own));
}

// The gradients of the logits of a position with the label y.
template <typename T>
struct RowGradient {
  int64_t y;
  bool counts;                   // if false, they are 0, not 0 times infinity
  T of_label, of_all, of_class;  // dx = of_all softmax(x) - of_label at the label - of_class w

  __device__ RowGradient(const CrossEntropy<T>& ce, const Totals& totals, T dloss, int64_t label)
      : y(label), counts(ce.counts(label)) {
    const auto of_loss = static_cast<double>(dloss);
    const double scale = ce.mean ? mean_on_device(totals.labels, of_loss) : of_loss;
    const double of_counted = counts ? scale * (1 - ce.smoothing) * static_cast<double>(ce.weight_of(y)) : 0.0;
    of_label = static_cast<T>(of_counted);
    of_all = static_cast<T>(of_counted + scale * ce.smoothing_per_class * totals.classes);
    of_class = static_cast<T>(scale * ce.smoothing_per_class);
  }

  // Makes gradients of the logits of neighbouring classes from c on, of a position that counts; 0 after the last class.
  template <int kCount>
  __device__ void differentiate(const CrossEntropy<T>& ce, int64_t c, T log_sum, T (&x)[kCount]) const {
    for (int k = 0; k < kCount; ++k) x[k] = of_all * math::exp_to_one(x[k] - log_sum);
    const int label = y >= c && y < c + kCount ? static_cast<int>(y - c) : kCount;
    const int end = ce.classes < c + kCount ? static_cast<int>(ce.classes - c) : kCount;
    if (ce.smoothing > 0) {
      for (int k = 0; k < kCount; ++k) x[k] -= k < end ? of_class * ce.weight_of(c + k) : T{0};
    }
    if (label < kCount) {
      for (int k = 0; k < kCount; ++k) x[k] -= k == label ? of_label : T{0};
    }
    if (end < kCount) {
      for (int k = 0; k < kCount; ++k) x[k] = k < end ? x[k] : T{0};
    }
  }
};

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

}  // namespace onnx_train::cuda
