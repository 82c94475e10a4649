// The operations of each reduction: `start`, `add` an element, `merge` two accumulators, `finish` with the number of
// elements. W is the type in which sums accumulate. Stateless; host and device code share them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::math {

// The CPU's type of sums: double for floats, so that long sums stay accurate; unsigned for integers, so that they may
// wrap.
template <typename T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

// Converts the accumulator of a sum of Ts to a number.
template <typename T, typename W>
ONNX_TRAIN_HD auto number(W a) {
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<int64_t>(a);
  } else {
    return a;
  }
}

template <typename T, typename W = Wide<T>>
struct SumOf {
  using Acc = W;
  ONNX_TRAIN_HD static Acc start() { return 0; }
  ONNX_TRAIN_HD static Acc add(Acc a, T x) { return a + static_cast<Acc>(x); }
  ONNX_TRAIN_HD static Acc merge(Acc a, Acc b) { return a + b; }
  ONNX_TRAIN_HD static T finish(Acc a, int64_t) { return static_cast<T>(a); }
};

template <typename T, typename W = Wide<T>>
struct MeanOf : SumOf<T, W> {
  ONNX_TRAIN_HD static T finish(W a, int64_t n) {
    if (std::is_integral_v<T> && n == 0) return 0;
    return static_cast<T>(number<T>(a) / static_cast<decltype(number<T>(a))>(n));
  }
};

template <typename T, typename W = Wide<T>>
struct AbsoluteSumOf : SumOf<T, W> {
  ONNX_TRAIN_HD static W add(W a, T x) {
    if constexpr (std::is_signed_v<T>) {
      if (x < 0) return a - static_cast<W>(x);
    }
    return a + static_cast<W>(x);
  }
};

template <typename T, typename W = Wide<T>>
struct SquareSumOf : SumOf<T, W> {
  ONNX_TRAIN_HD static W add(W a, T x) { return a + static_cast<W>(x) * static_cast<W>(x); }
};

template <typename T, typename W = Wide<T>>
struct NormOf : SquareSumOf<T, W> {
  ONNX_TRAIN_HD static T finish(W a, int64_t) { return static_cast<T>(std::sqrt(static_cast<double>(a))); }
};

template <typename T, typename W = Wide<T>>
struct LogOfSum : SumOf<T, W> {
  ONNX_TRAIN_HD static T finish(W a, int64_t) { return static_cast<T>(std::log(static_cast<double>(number<T>(a)))); }
};

template <typename T, typename W = Wide<T>>
struct ProductOf {
  using Acc = W;
  ONNX_TRAIN_HD static Acc start() { return 1; }
  ONNX_TRAIN_HD static Acc add(Acc a, T x) { return a * static_cast<Acc>(x); }
  ONNX_TRAIN_HD static Acc merge(Acc a, Acc b) { return a * b; }
  ONNX_TRAIN_HD static T finish(Acc a, int64_t) { return static_cast<T>(a); }
};

// NaN wins, as in NumPy.
template <typename T, typename = void>
struct MaximumOf {
  using Acc = T;
  ONNX_TRAIN_HD static T start() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  ONNX_TRAIN_HD static T add(T a, T x) { return (x > a) | (x != x) ? x : a; }
  ONNX_TRAIN_HD static T merge(T a, T b) { return add(a, b); }
  ONNX_TRAIN_HD static T finish(T a, int64_t) { return a; }
};

template <typename T, typename = void>
struct MinimumOf {
  using Acc = T;
  ONNX_TRAIN_HD static T start() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  ONNX_TRAIN_HD static T add(T a, T x) { return (x < a) | (x != x) ? x : a; }
  ONNX_TRAIN_HD static T merge(T a, T b) { return add(a, b); }
  ONNX_TRAIN_HD static T finish(T a, int64_t) { return a; }
};

// log Σ exp(x), accumulated as the maximum so far and Σ exp(x - maximum).
template <typename T, typename = void>
struct LogSumExpOf {
  struct Acc {
    double largest, sum;
  };
  static constexpr double kNone = -std::numeric_limits<double>::infinity();
  ONNX_TRAIN_HD static Acc start() { return {kNone, 0}; }
  ONNX_TRAIN_HD static Acc add(Acc a, T x) { return merge(a, {static_cast<double>(x), 1}); }
  ONNX_TRAIN_HD static Acc merge(Acc a, Acc b) {
    if (b.largest == kNone) return a;
    if (b.largest <= a.largest) return {a.largest, a.sum + b.sum * std::exp(b.largest - a.largest)};
    return {b.largest, b.sum + a.sum * std::exp(a.largest - b.largest)};
  }
  ONNX_TRAIN_HD static T finish(Acc a, int64_t) {
    return static_cast<T>(std::isinf(a.largest) ? a.largest : a.largest + std::log(a.sum));
  }
};

// Σ exp(x - largest x) with the largest x, in one pass: the sum is scaled whenever a larger x comes. Lines of softmax
// add two operands, of which the second is not used. A line of -inf has the sum 0.
template <typename T>
struct ExponentialSum {
  struct Acc {
    T largest, sum;
  };
  ONNX_TRAIN_HD static Acc start() { return {-std::numeric_limits<T>::infinity(), 0}; }
  ONNX_TRAIN_HD static Acc add(Acc a, T x, T = 0) {
    if (x > a.largest) return {x, a.sum * exp(a.largest - x) + 1};
    return x == -std::numeric_limits<T>::infinity() ? a : Acc{a.largest, a.sum + exp(x - a.largest)};
  }
  // Adds several elements, for which the sum is scaled once.
  template <int kCount>
  ONNX_TRAIN_HD static Acc add_all(Acc a, const T (&x)[kCount]) {
    using Limits = std::numeric_limits<T>;
    T largest = a.largest;
    for (const T v : x) largest = larger(largest, v);  // not a NaN: the sum becomes one
    // Between the finite numbers -m and m, since a difference of two infinities would be NaN.
    const T base = larger(-larger(-largest, Limits::lowest()), Limits::lowest());
    T sum = a.sum * exp_to_one(a.largest - base);
    for (const T v : x) sum += exp_to_one(v - base);
    return {largest, sum};
  }
  ONNX_TRAIN_HD static Acc merge(Acc a, Acc b) {
    const Acc larger = b.largest > a.largest ? b : a, other = b.largest > a.largest ? a : b;
    return other.sum == 0 ? larger : Acc{larger.largest, larger.sum + other.sum * exp(other.largest - larger.largest)};
  }
};

}  // namespace onnx_train::math
