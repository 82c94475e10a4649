// Group normalization of channels-last images, [batch, sizes.., channels]: a sample is a matrix of positions (rows) by
// channels. A sample is read twice, the first time for its sums. The sums are computed in pieces of rows that do not
// depend on the number of threads. Threads share the samples or, if there are fewer samples than threads, the pieces of
// one sample after the other.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/normalization/batch_normalization.h"
#include "kernels/cpu/normalization/normalization.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored_lines.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

struct Layout {
  int64_t batch, rows = 1, channels, groups;
  double epsilon;
  Pieces pieces;  // pieces of the rows of a sample
  int64_t threads;

  explicit Layout(const NodeSpec& s)
      : batch(s.in_shape(0).front()),
        rows(rows_of(s.in_shape(0))),
        channels(s.in_shape(0).back()),
        groups(s.node().attr("num_groups", int64_t{1})),
        epsilon(s.node().attr("epsilon", kEpsilon)),
        pieces(rows, std::max<int64_t>(kRowsPerSum, 2 * kElementGrain / std::max<int64_t>(channels, 1))),
        threads(s.threads()) {}

  static int64_t rows_of(const Shape& shape) {
    int64_t rows = 1;
    for (size_t i = 1; i + 1 < shape.size(); ++i) rows *= shape[i];
    return rows;
  }
  int64_t per_group() const { return channels / groups; }
  int64_t sample() const { return rows * channels; }

  template <typename F>
  void for_samples(const F& f) const {
    const bool deal = batch >= threads;
    const int64_t few = std::max<int64_t>(1, kElementGrain / 2 / std::max<int64_t>(sample(), 1));
    parallel_for(batch, deal ? few : batch, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) f(n);
    });
  }
  template <typename F>
  void for_pieces(const F& f) const {
    parallel_for(pieces.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) f(p);
    });
  }
};

// Per-channel values; kNumbers rows of `channels` elements are stored one after the other.
enum Number { kShift, kMean, kFactor, kOffset, kSlope, kNumbers };

// Workspace of a sample: for each piece and channel two Sums (of x and of dy), and the per-channel values. The totals
// of a sample replace the sums of its first piece.
template <typename T>
struct Workspace {
  Layout layout;

  size_t sums_bytes() const { return static_cast<size_t>(layout.pieces.count * layout.channels * 2) * sizeof(Sums); }
  size_t bytes_of_sample() const {
    return (sums_bytes() + static_cast<size_t>(layout.channels * kNumbers) * sizeof(T) + 63) / 64 * 64;
  }
  size_t bytes() const { return static_cast<size_t>(layout.batch) * bytes_of_sample(); }
  char* sample(const Launch& a, int64_t n) const {
    return a.scratch<char>() + static_cast<size_t>(n) * bytes_of_sample();
  }
  Sums* x_sums(const Launch& a, int64_t n, int64_t piece) const {
    return reinterpret_cast<Sums*>(sample(a, n)) + piece * layout.channels * 2;
  }
  Sums* dy_sums(const Launch& a, int64_t n, int64_t piece) const { return x_sums(a, n, piece) + layout.channels; }
  T* numbers(const Launch& a, int64_t n, Number which) const {
    return reinterpret_cast<T*>(sample(a, n) + sums_bytes()) + which * layout.channels;
  }
};

// An estimate of each group's mean, stored for each of its channels: the mean of a few rows from all over the sample.
template <typename X, typename T>
void guess_means(const X* x, const Layout& l, T* shift) {
  constexpr int64_t kSome = 16;
  const int64_t some = std::min(kSome, l.rows), per_group = l.per_group();
  for (int64_t g = 0; g < l.groups; ++g) {
    double total = 0;
    for (int64_t k = 0; k < some; ++k) {
      const X* from = x + k * l.rows / some * l.channels + g * per_group;
      for (int64_t c = 0; c < per_group; ++c) total += static_cast<double>(load(from[c]));
    }
    std::fill_n(shift + g * per_group, per_group, static_cast<T>(total / static_cast<double>(some * per_group)));
  }
}

// Calls add(first channel, channels, first row, rows, first sums, second sums) for groups of rows of a piece and
// accumulates the results in `sums`.
template <typename T, typename Add>
void sum_columns(const Layout& l, int64_t piece, Sums* sums, const Add& add) {
  std::fill_n(sums, l.channels, Sums{});
  for (int64_t row = l.pieces.begin(piece); row < l.pieces.end(piece); row += kRowsPerSum) {
    const int64_t rows = std::min(kRowsPerSum, l.pieces.end(piece) - row);
    for (int64_t c = 0; c < l.channels; c += kWidth) {
      const int64_t width = std::min(kWidth, l.channels - c);
      T first[kWidth] = {}, second[kWidth] = {};
      add(c, width, row, rows, first, second);
      for (int64_t i = 0; i < width; ++i) {
        sums[c + i].first += static_cast<double>(first[i]);
        sums[c + i].second += static_cast<double>(second[i]);
      }
    }
  }
}

// Σ (x - shift) and Σ (x - shift)² of the rows of a piece.
template <typename X, typename T>
void sum_x(const X* x, const T* shift, const Layout& l, int64_t piece, Sums* sums) {
  sum_columns<T>(l, piece, sums, [&](int64_t c, int64_t width, int64_t row, int64_t rows, T* first, T* second) {
    vectorized(
        [&] { add_shifted_moments(x + row * l.channels + c, shift + c, rows, width, l.channels, first, second); });
  });
}

// Σ dy and Σ dy (x - shift).
template <typename X, typename T>
void sum_dy(const X* x, const X* dy, const T* shift, const Layout& l, int64_t piece, Sums* sums) {
  sum_columns<T>(l, piece, sums, [&](int64_t c, int64_t width, int64_t row, int64_t rows, T* first, T* second) {
    const int64_t at = row * l.channels + c;
    vectorized([&] { add_gradient_sums(x + at, dy + at, shift + c, rows, width, l.channels, first, second); });
  });
}

// Adds the first `count` sums of all pieces to those of the first piece.
void join_pieces(const Layout& l, Sums* sums, int64_t count) {
  for (int64_t p = 1; p < l.pieces.count; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      sums[i].first += sums[p * 2 * l.channels + i].first;
      sums[i].second += sums[p * 2 * l.channels + i].second;
    }
  }
}

struct GroupStatistics {
  double offset;  // mean minus shift
  double inv_std;
};

GroupStatistics group_statistics(const Layout& l, const Sums* sums) {
  Sums total;
  for (int64_t c = 0; c < l.per_group(); ++c) {
    total.first += sums[c].first;
    total.second += sums[c].second;
  }
  const double n = static_cast<double>(l.rows * l.per_group()), offset = total.first / n;
  return {offset, 1 / std::sqrt(std::max(total.second / n - offset * offset, 0.0) + l.epsilon)};
}

// ---- Forward

template <typename X, typename T, typename Y>
void normalize_sample(const Launch& a, const Workspace<T>& w, int64_t n) {
  const Layout& l = w.layout;
  const X* x = a.in<X>(0) + n * l.sample();
  Y* y = a.out<Y>() + n * l.sample();
  const T *scale = a.in<T>(1), *bias = a.in<T>(2);
  T *shift = w.numbers(a, n, kShift), *mean = w.numbers(a, n, kMean), *factor = w.numbers(a, n, kFactor);
  Sums* sums = w.x_sums(a, n, 0);
  guess_means(x, l, shift);
  l.for_pieces([&](int64_t p) { sum_x(x, shift, l, p, w.x_sums(a, n, p)); });
  join_pieces(l, sums, l.channels);
  for (int64_t first = 0; first < l.channels; first += l.per_group()) {
    const GroupStatistics group = group_statistics(l, sums + first);
    for (int64_t c = first; c < first + l.per_group(); ++c) {
      mean[c] = static_cast<T>(static_cast<double>(shift[c]) + group.offset);
      factor[c] = static_cast<T>(group.inv_std * static_cast<double>(scale[c]));
    }
  }
  l.for_pieces([&](int64_t p) {
    const int64_t at = l.pieces.begin(p) * l.channels, rows = l.pieces.end(p) - l.pieces.begin(p);
    vectorized([&] { scale_columns(x + at, mean, factor, bias, rows, l.channels, l.channels, y + at); });
  });
}

template <typename X, typename Y>
Prepared prepare_forward(const NodeSpec& s) {
  using T = Computed<X>;
  const Workspace<T> workspace{Layout(s)};
  const auto run = [=](const Launch& a) {
    workspace.layout.for_samples([&](int64_t n) { normalize_sample<X, T, Y>(a, workspace, n); });
  };
  return {run, workspace.bytes(), {{0, 0}}};
}

// ---- Gradient: the body of GroupNormalizationGrad

// dx = dy factor - offset - (x - mean) slope. dx may be x or dy.
template <typename X, typename T, typename Y>
void differentiate(const X* x, const X* dy, const T* mean, const T* factor, const T* offset, const T* slope,
                   int64_t rows, int64_t width, Y* dx) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * width + i;
      dx[at] = store<Y>(load(dy[at]) * factor[i] - offset[i] - (load(x[at]) - mean[i]) * slope[i]);
    }
  }
}

// For a group of n elements that starts at channel `first`, with g = dy scale:
//   dx = (g - Σ g / n - x̂ Σ g x̂ / n) inv_std
// Stores Σ dy and Σ dy x̂ of each channel in `dy_sums`.
template <typename T>
void find_slopes(const Launch& a, const Workspace<T>& w, int64_t sample, int64_t first) {
  const Layout& l = w.layout;
  const T* scale = a.in<T>(1);
  Sums* dy_sums = w.dy_sums(a, sample, 0);
  const GroupStatistics group = group_statistics(l, w.x_sums(a, sample, 0) + first);
  double g_sum = 0, along = 0;
  for (int64_t c = first; c < first + l.per_group(); ++c) {
    dy_sums[c].second = (dy_sums[c].second - group.offset * dy_sums[c].first) * group.inv_std;
    g_sum += static_cast<double>(scale[c]) * dy_sums[c].first;
    along += static_cast<double>(scale[c]) * dy_sums[c].second;
  }
  const double n = static_cast<double>(l.rows * l.per_group());
  for (int64_t c = first; c < first + l.per_group(); ++c) {
    const double shift = static_cast<double>(w.numbers(a, sample, kShift)[c]);
    w.numbers(a, sample, kMean)[c] = static_cast<T>(shift + group.offset);
    w.numbers(a, sample, kFactor)[c] = static_cast<T>(static_cast<double>(scale[c]) * group.inv_std);
    w.numbers(a, sample, kOffset)[c] = static_cast<T>(g_sum / n * group.inv_std);
    w.numbers(a, sample, kSlope)[c] = static_cast<T>(along / n * group.inv_std * group.inv_std);
  }
}

template <typename X, typename T, typename Y>
void differentiate_sample(const Launch& a, const Workspace<T>& w, int64_t n) {
  const Layout& l = w.layout;
  const X *x = a.in<X>(0) + n * l.sample(), *dy = a.in<X>(2) + n * l.sample();
  T* shift = w.numbers(a, n, kShift);
  guess_means(x, l, shift);
  l.for_pieces([&](int64_t p) {
    sum_x(x, shift, l, p, w.x_sums(a, n, p));
    sum_dy(x, dy, shift, l, p, w.dy_sums(a, n, p));
  });
  join_pieces(l, w.x_sums(a, n, 0), 2 * l.channels);
  for (int64_t c = 0; c < l.channels; c += l.per_group()) find_slopes(a, w, n, c);
  if (!a.outputs[0]) return;
  Y* dx = a.out<Y>(0) + n * l.sample();
  l.for_pieces([&](int64_t p) {
    const int64_t at = l.pieces.begin(p) * l.channels, rows = l.pieces.end(p) - l.pieces.begin(p);
    vectorized([&] {
      differentiate(x + at, dy + at, w.numbers(a, n, kMean), w.numbers(a, n, kFactor), w.numbers(a, n, kOffset),
                    w.numbers(a, n, kSlope), rows, l.channels, dx + at);
    });
  });
}

template <typename X, typename Y>
Prepared prepare_gradient(const NodeSpec& s) {
  using T = Computed<X>;
  const Workspace<T> workspace{Layout(s)};
  const bool has_dscale = s.has_output(1), has_dbias = s.has_output(2);
  const auto run = [=](const Launch& a) {
    const Layout& l = workspace.layout;
    l.for_samples([&](int64_t n) { differentiate_sample<X, T, Y>(a, workspace, n); });
    for (int64_t c = 0; c < l.channels; ++c) {
      Sums total;
      for (int64_t n = 0; n < l.batch; ++n) {
        total.first += workspace.dy_sums(a, n, 0)[c].first;
        total.second += workspace.dy_sums(a, n, 0)[c].second;
      }
      if (has_dscale) a.out<T>(1)[c] = static_cast<T>(total.second);
      if (has_dbias) a.out<T>(2)[c] = static_cast<T>(total.first);
    }
  };
  return {run, workspace.bytes(), {{0, 2}, {0, 0}}};
}

// ---- Rows

// Whether x (and dy in the gradient) have one type, output 0 has that type or, for bfloat16 images, float32, and scale
// and bias have the type of the computation.
bool supports(const NodeSpec& s) {
  const Shape shape = s.in_shape(0);
  const DType stored = s.in_type(0), computed = computed_type(stored);
  if (!is_float_or_double(computed) || shape.size() < 2 || s.in_size(0) == 0) return false;
  if (s.has_output(0) && s.out_type(0) != stored && s.out_type(0) != computed) return false;
  const Shape per_channel = {shape.back()};
  const bool gradient = s.node().op().ends_with("Grad");
  if (s.in_type(1) != computed || s.in_shape(1) != per_channel) return false;
  if (s.in_type(2) != (gradient ? stored : computed) || s.in_shape(2) != (gradient ? shape : per_channel)) return false;
  const int64_t groups = s.node().attr("num_groups", 1);
  return groups > 0 && shape.back() % groups == 0;
}

// Calls f(X{}, Y{}) for the element types of the images that are read and written.
template <typename F>
Prepared dispatch_images(const NodeSpec& s, const F& f) {
  if (!is_narrow(s.in_type(0))) return dispatch_float(s.in_type(0), [&](auto zero) { return f(zero, zero); });
  return s.has_output(0) && is_narrow(s.out_type(0)) ? f(BFloat16{}, BFloat16{}) : f(BFloat16{}, float{});
}

Prepared forward(const NodeSpec& s) {
  return dispatch_images(s, [&]<typename X, typename Y>(X, Y) { return prepare_forward<X, Y>(s); });
}

Prepared gradient(const NodeSpec& s) {
  return dispatch_images(s, [&]<typename X, typename Y>(X, Y) { return prepare_gradient<X, Y>(s); });
}

}  // namespace

std::vector<Kernel> channels_last_group_normalization_kernels() {
  return {
      Kernel{"GroupNormalization", supports, forward, kDomain}.on_images(ImageLayout::kChannelsLast),
      Kernel{"GroupNormalizationGrad", supports, gradient, kDomain}.on_images(ImageLayout::kChannelsLast),
  };
}

}  // namespace onnx_train::cpu
