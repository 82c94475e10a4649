// The loops of batch normalization on [batch, channels, rest]. If `rest` is long, the row of a channel is one vector.
// If it is short, several neighbouring channels form one vector and their parameters are repeated along it.
// Channels-last images are the second kind, with rest = 1.
//
// Images may be bfloat16: they are converted when read, computed in float32, and rounded when written. Per-channel
// values are float32. The results equal those of float32 images with casts around the operator.
//
// The functions are pure loops, called within `vectorized` (simd.h); any thread may call them on its own block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/normalization/normalization.h"

namespace onnx_train::cpu {

constexpr int64_t kShort = 32;   // rows with fewer elements are combined with those of neighbouring channels
constexpr int64_t kWidth = 256;  // most elements in the combined row of a block of channels

struct ChannelLayout : Channels {
  using Channels::Channels;
  bool is_short() const { return rest < kShort; }
  // Channels in a block.
  int64_t block() const { return is_short() ? kWidth / std::max<int64_t>(rest, 1) : 1; }
};

// Channels [first, last) of samples [begin, end). Blocks of different shares may run at the same time.
struct ChannelBlock {
  int64_t first, last, begin, end, share;
  int64_t at(const ChannelLayout& layout) const { return first * layout.rest + begin * layout.stride(); }
  int64_t width(const ChannelLayout& layout) const { return (last - first) * layout.rest; }
  int64_t rows() const { return end - begin; }
};

// ---- Long rows: one channel

// Σ (x - shift) and Σ (x - shift)². A shift near the mean prevents cancellation in the variance.
template <typename T>
Sums shifted_moments(const T* __restrict x, T shift, int64_t rows, int64_t rest, int64_t stride) {
  Sums sums;
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * stride;
    T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
    for (int64_t i = 0; i < rest; ++i) {
      const T d = row[i] - shift;
      first += d;
      second += d * d;
    }
    sums.first += static_cast<double>(first);
    sums.second += static_cast<double>(second);
  }
  return sums;
}

// dx = (dy - dy_mean - (x - mean) along) factor. dx may be x or dy.
template <typename X, typename D, typename Y>
void differentiate_rows(const X* x, const D* dy, Computed<X> mean, Computed<X> dy_mean, Computed<X> along,
                        Computed<X> factor, int64_t rows, int64_t rest, int64_t stride, Y* dx) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = r * stride; i < r * stride + rest; ++i) {
      dx[i] = store<Y>((load(dy[i]) - dy_mean - (load(x[i]) - mean) * along) * factor);
    }
  }
}

// y = relu((x - mean) factor + bias + residual); the residual may be null. y may be x or the residual. The normalized
// value and the sum are rounded to R; Y can hold R exactly.
template <typename R, bool kAdds, typename X, typename Y>
void scale_rows_and_rectify(const X* x, const X* residual, Computed<X> mean, Computed<X> factor, Computed<X> bias,
                            int64_t rows, int64_t rest, int64_t stride, Y* y) {
  using T = Computed<X>;
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = r * stride; i < r * stride + rest; ++i) {
      const T scaled = rounded<R>((load(x[i]) - mean) * factor + bias);
      const T sum = kAdds ? rounded<R>(scaled + load(residual[i])) : scaled;
      y[i] = store_exactly<Y>(sum < T{0} ? T{0} : sum);
    }
  }
}

// dz = dy where y is positive, else 0; also Σ dz and Σ dz (x - mean). dz may be dy or y.
template <typename T>
Sums rectified_gradient_sums(const T* x, const T* dy, const T* y, T mean, int64_t rows, int64_t rest, int64_t stride,
                             T* dz) {
  Sums sums;
  for (int64_t r = 0; r < rows; ++r) {
    T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
    for (int64_t i = r * stride; i < r * stride + rest; ++i) {
      const T given = dy[i], d = y[i] > T{0} ? given : T{0};
      dz[i] = d;
      first += d;
      second += d * (x[i] - mean);
    }
    sums.first += static_cast<double>(first);
    sums.second += static_cast<double>(second);
  }
  return sums;
}

// ---- Short rows: a block of channels, each parameter repeated `rest` times

template <typename T>
struct Columns {
  alignas(64) T values[kWidth];
  Columns() = default;
  Columns(const T* per_channel, const ChannelBlock& block, const ChannelLayout& layout) {
    for (int64_t c = block.first, i = 0; c < block.last; ++c) {
      for (int64_t end = i + layout.rest; i < end; ++i) values[i] = per_channel[c];
    }
  }
};

// Column sums cover at most this many rows: longer float32 sums would lose accuracy.
constexpr int64_t kRowsPerSum = 64;

template <typename X, typename T>
void add_shifted_moments(const X* __restrict x, const T* __restrict shift, int64_t rows, int64_t width, int64_t stride,
                         T* __restrict first, T* __restrict second) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T d = load(x[r * stride + i]) - shift[i];
      first[i] += d;
      second[i] += d * d;
    }
  }
}

template <typename X, typename T>
void add_gradient_sums(const X* __restrict x, const X* __restrict dy, const T* __restrict mean, int64_t rows,
                       int64_t width, int64_t stride, T* __restrict first, T* __restrict second) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T d = load(dy[r * stride + i]);
      first[i] += d;
      second[i] += d * (load(x[r * stride + i]) - mean[i]);
    }
  }
}

template <typename X, typename T, typename Y>
void scale_columns(const X* x, const T* mean, const T* factor, const T* bias, int64_t rows, int64_t width,
                   int64_t stride, Y* y) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      y[r * stride + i] = store<Y>((load(x[r * stride + i]) - mean[i]) * factor[i] + bias[i]);
    }
  }
}

template <typename X, typename D, typename T, typename Y>
void differentiate_columns(const X* x, const D* dy, const T* mean, const T* dy_mean, const T* along, const T* factor,
                           int64_t rows, int64_t width, int64_t stride, Y* dx) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * stride + i;
      dx[at] = store<Y>((load(dy[at]) - dy_mean[i] - (load(x[at]) - mean[i]) * along[i]) * factor[i]);
    }
  }
}

// See scale_rows_and_rectify.
template <typename R, bool kAdds, typename X, typename T, typename Y>
void scale_columns_and_rectify(const X* x, const X* residual, const T* mean, const T* factor, const T* bias,
                               int64_t rows, int64_t width, int64_t stride, Y* y) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * stride + i;
      const T scaled = rounded<R>((load(x[at]) - mean[i]) * factor[i] + bias[i]);
      const T sum = kAdds ? rounded<R>(scaled + load(residual[at])) : scaled;
      y[at] = store_exactly<Y>(sum < T{0} ? T{0} : sum);
    }
  }
}

// See rectified_gradient_sums. The type of dz is at least as wide as that of dy.
template <typename X, typename T, typename D>
void add_rectified_gradient_sums(const X* x, const X* dy, const X* y, const T* mean, int64_t rows, int64_t width,
                                 int64_t stride, D* dz, T* __restrict first, T* __restrict second) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * stride + i;
      const T given = load(dy[at]), d = load(y[at]) > T{0} ? given : T{0};
      dz[at] = store_exactly<D>(d);
      first[i] += d;
      second[i] += d * (load(x[at]) - mean[i]);
    }
  }
}

// Calls add(first row, rows, first sums, second sums) for groups of the block's rows and adds the column sums to the
// sums of their channels.
template <typename T, typename Add>
void reduce_columns(const ChannelBlock& block, const ChannelLayout& layout, Sums* sums, const Add& add) {
  for (int64_t row = 0; row < block.rows(); row += kRowsPerSum) {
    Columns<T> first, second;
    std::fill_n(first.values, kWidth, T{0});
    std::fill_n(second.values, kWidth, T{0});
    add(row, std::min(kRowsPerSum, block.rows() - row), first.values, second.values);
    for (int64_t i = 0; i < block.width(layout); ++i) {
      sums[i / layout.rest].first += static_cast<double>(first.values[i]);
      sums[i / layout.rest].second += static_cast<double>(second.values[i]);
    }
  }
}

}  // namespace onnx_train::cpu
