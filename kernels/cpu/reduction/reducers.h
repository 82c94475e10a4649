// The operations of each reduction: `start`, `add` an element, `merge` two accumulators, `finish` with the number of
// elements. reduce.h has the loops. Stateless; any thread may call them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace onnx_train::cpu {

// Accumulator types of sums: double for floats, so that long sums stay accurate; unsigned for integers, so that they
// may wrap.
template <typename T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

// Converts the accumulator of a sum of Ts to a number.
template <typename T>
auto number(Wide<T> a) {
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<int64_t>(a);
  } else {
    return a;
  }
}

template <typename T>
struct SumOf {
  using Acc = Wide<T>;
  static Acc start() { return 0; }
  static Acc add(Acc a, T x) { return a + static_cast<Acc>(x); }
  static Acc merge(Acc a, Acc b) { return a + b; }
  static T finish(Acc a, int64_t) { return static_cast<T>(a); }
};

template <typename T>
struct MeanOf : SumOf<T> {
  static T finish(Wide<T> a, int64_t n) {
    if (std::is_integral_v<T> && n == 0) return 0;
    return static_cast<T>(number<T>(a) / static_cast<decltype(number<T>(a))>(n));
  }
};

template <typename T>
struct AbsoluteSumOf : SumOf<T> {
  static Wide<T> add(Wide<T> a, T x) { return x < 0 ? a - static_cast<Wide<T>>(x) : a + static_cast<Wide<T>>(x); }
};

template <typename T>
struct SquareSumOf : SumOf<T> {
  static Wide<T> add(Wide<T> a, T x) { return a + static_cast<Wide<T>>(x) * static_cast<Wide<T>>(x); }
};

template <typename T>
struct NormOf : SquareSumOf<T> {
  static T finish(Wide<T> a, int64_t) { return static_cast<T>(std::sqrt(static_cast<double>(a))); }
};

template <typename T>
struct LogOfSum : SumOf<T> {
  static T finish(Wide<T> a, int64_t) { return static_cast<T>(std::log(static_cast<double>(number<T>(a)))); }
};

template <typename T>
struct ProductOf {
  using Acc = Wide<T>;
  static Acc start() { return 1; }
  static Acc add(Acc a, T x) { return a * static_cast<Acc>(x); }
  static Acc merge(Acc a, Acc b) { return a * b; }
  static T finish(Acc a, int64_t) { return static_cast<T>(a); }
};

// NaN wins, as in NumPy.
template <typename T>
struct MaximumOf {
  using Acc = T;
  static T start() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  static T add(T a, T x) { return (x > a) | (x != x) ? x : a; }
  static T merge(T a, T b) { return add(a, b); }
  static T finish(T a, int64_t) { return a; }
};

template <typename T>
struct MinimumOf {
  using Acc = T;
  static T start() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  static T add(T a, T x) { return (x < a) | (x != x) ? x : a; }
  static T merge(T a, T b) { return add(a, b); }
  static T finish(T a, int64_t) { return a; }
};

}  // namespace onnx_train::cpu
