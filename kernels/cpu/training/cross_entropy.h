// The softmax cross entropy of some positions: what the kernels of the losses (losses.cc) and of a loss with the
// product before it (products/linear_cross_entropy.cc) have in common. Plain values and pure functions, for any thread;
// only check_and_sum_weights reports a fault, from the thread that runs the kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/cpu/support/simd.h"
#include "kernels/geometry/losses.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cpu {

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
constexpr int64_t kPositionLanes = 64;

// `lanes` positions from `position` on; their first logits start at `offset`.
struct PositionBlock {
  int64_t offset, position, lanes;
};

// The logits of a piece, or their gradients. Consecutive classes of a position are `stride` elements apart.
template <typename T>
struct Strided {
  T* data;
  int64_t stride;
};

// Each of kPositionLanes partial results waits for the one before it alone.
template <typename T>
T largest_of(int64_t n, const T* x) {
  const int64_t whole = n / kPositionLanes * kPositionLanes;
  T most[kPositionLanes];
  std::fill(most, most + kPositionLanes, -std::numeric_limits<T>::infinity());
  for (int64_t c = 0; c < whole; c += kPositionLanes) {
#pragma omp simd
    for (int64_t i = 0; i < kPositionLanes; ++i) most[i] = x[c + i] > most[i] ? x[c + i] : most[i];
  }
  T result = *std::max_element(most, most + kPositionLanes);
  for (int64_t c = whole; c < n; ++c) result = x[c] > result ? x[c] : result;
  return result;
}

// Σ exp (x - most); `keep` takes each position and its term.
template <typename T, typename Keep>
T sum_of_exponentials(int64_t n, const T* x, T most, const Keep& keep) {
  const int64_t whole = n / kPositionLanes * kPositionLanes;
  T sums[kPositionLanes];
  std::fill(sums, sums + kPositionLanes, T{0});
  for (int64_t c = 0; c < whole; c += kPositionLanes) {
#pragma omp simd
    for (int64_t i = 0; i < kPositionLanes; ++i) {
      const T e = math::exp(x[c + i] - most);
      sums[i] += e;
      keep(c + i, e);
    }
  }
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = whole; c < n; ++c) {
    const T e = math::exp(x[c] - most);
    sum += e;
    keep(c, e);
  }
  for (const T lane : sums) sum += lane;
  return sum;
}

// log Σ exp x
template <typename T>
T log_sum_exp(int64_t n, const T* x) {
  const T most = largest_of(n, x);
  return most + std::log(sum_of_exponentials(n, x, most, [](int64_t, T) {}));
}

// log Σ exp x for `lanes` neighbouring positions; consecutive classes are `stride` apart.
template <typename T>
void log_sum_exp_lanes(int64_t n, const T* x, int64_t stride, int64_t lanes, T* result) {
  T row_max[kPositionLanes], sum[kPositionLanes];
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

// The number of classes before the label: those of larger logits, and of equal ones with smaller numbers; not a number
// where a logit is none.
template <typename T>
T rank_of(int64_t n, const T* x, int64_t label) {
  const T own = x[label];
  int64_t before = 0;
  int has_nan = own != own;
#pragma omp simd reduction(+ : before) reduction(| : has_nan)
  for (int64_t c = 0; c < label; ++c) {
    before += x[c] >= own;
    has_nan |= x[c] != x[c];
  }
#pragma omp simd reduction(+ : before) reduction(| : has_nan)
  for (int64_t c = label + 1; c < n; ++c) {
    before += x[c] > own;
    has_nan |= x[c] != x[c];
  }
  return has_nan ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(before);
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

// Of positions whose labels' weights sum to `total_weight`.
template <typename T>
GradientScales<T> gradient_scales(const CrossEntropy& ce, const T* weight, double total_weight, T dloss) {
  const auto wanted = static_cast<double>(dloss);
  const double scale = ce.mean ? mean_over(total_weight, wanted) : wanted;
  double weighting = static_cast<double>(ce.logits.size);
  if (weight && ce.smoothing > 0) weighting = std::accumulate(weight, weight + ce.logits.size, 0.0);
  return {scale, weighting, static_cast<T>(scale * ce.smoothing_per_class())};
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
  T label_share[kPositionLanes] = {}, softmax_share[kPositionLanes] = {};
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

}  // namespace onnx_train::cpu
