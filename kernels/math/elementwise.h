// The element-wise operators of ONNX as functors of scalars. They give numbers where C++ leaves behaviour undefined:
// integers wrap around, an integer divided by zero is zero, shifts past the width are zero. NaN passes through Max,
// Min, Clip, Relu and Sign.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/math/vector_math.h"

namespace onnx_train::math {

// Arithmetic on integers happens in this type, where overflow wraps.
template <typename T>
using Wrapping = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<(sizeof(T) < sizeof(uint64_t)), uint32_t, uint64_t>>;

template <typename T>
ONNX_TRAIN_HD inline Wrapping<T> wrapping(T x) {
  return static_cast<Wrapping<T>>(x);
}

// ---- Binary

struct Add {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) + wrapping(b));
  }
};

struct Sub {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) - wrapping(b));
  }
};

struct Mul {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(wrapping(a) * wrapping(b));
  }
};

// Integers are cut towards zero.
struct Div {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a / b;
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return static_cast<T>(0 - wrapping(a));  // the smallest integer has no opposite
      }
      return static_cast<T>(a / b);
    }
  }
};

struct Max {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

// The remainder with the sign of the divisor, as Python's %. ONNX's Mod with fmod=0.
struct FloorMod {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T r = std::fmod(a, b);
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
      }
      const T r = static_cast<T>(a % b);
      return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
    }
  }
};

// The remainder with the sign of the dividend, as C's fmod. ONNX's Mod with fmod=1.
struct TruncatedMod {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(a, b);
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
      }
      return static_cast<T>(a % b);
    }
  }
};

// The base's type is the result's; the exponent may have another.
struct Pow {
  template <typename T, typename E>
  ONNX_TRAIN_HD T operator()(T base, E exponent) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::pow(base, static_cast<T>(exponent));
    } else if constexpr (std::is_floating_point_v<E>) {
      return static_cast<T>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    } else {
      if (exponent < 0) return base == 1 ? 1 : base == -1 ? static_cast<T>(exponent % 2 == 0 ? 1 : -1) : 0;
      Wrapping<T> square = wrapping(base), result = 1;
      for (auto e = static_cast<uint64_t>(exponent); e != 0; e >>= 1, square *= square) {
        if (e & 1) result *= square;
      }
      return static_cast<T>(result);
    }
  }
};

struct Equal {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T a, T b) const {
    return a == b;
  }
};

struct Less {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T a, T b) const {
    return a < b;
  }
};

struct LessOrEqual {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T a, T b) const {
    return a <= b;
  }
};

struct Greater {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T a, T b) const {
    return a > b;
  }
};

struct GreaterOrEqual {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T a, T b) const {
    return a >= b;
  }
};

// Of booleans (And, Or, Xor, Not) and, bit by bit, of integers.
struct BitwiseAnd {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};

struct BitwiseOr {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};

struct BitwiseXor {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

struct ShiftLeft {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T bits) const {
    constexpr T kWidth = 8 * sizeof(T);
    return bits < kWidth ? static_cast<T>(wrapping(a) << bits) : T{0};
  }
};

struct ShiftRight {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T bits) const {
    constexpr T kWidth = 8 * sizeof(T);
    return bits < kWidth ? static_cast<T>(a >> bits) : T{0};
  }
};

// ---- Unary

struct Neg {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return static_cast<T>(std::is_floating_point_v<T> ? -wrapping(x) : 0 - wrapping(x));
  }
};

struct Abs {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fabs(x);
    } else {
      return x < 0 ? static_cast<T>(0 - wrapping(x)) : x;
    }
  }
};

struct Sign {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    const T sign = static_cast<T>((x > 0) - (x < 0));
    return x != x ? x : sign;
  }
};

struct Not {
  ONNX_TRAIN_HD bool operator()(bool x) const { return !x; }
};

struct BitwiseNot {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return static_cast<T>(~x);
  }
};

struct IsNaN {
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T x) const {
    return x != x;
  }
};

struct IsInf {
  bool positive = true, negative = true;
  template <typename T>
  ONNX_TRAIN_HD bool operator()(T x) const {
    constexpr T kInf = std::numeric_limits<T>::infinity();
    return (positive && x == kInf) || (negative && x == -kInf);
  }
};

// ---- Unary, of floats only

struct Sqrt {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::sqrt(x);
  }
};

struct Reciprocal {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return T{1} / x;
  }
};

struct Exp {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return exp(x);
  }
};

struct Log {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return log(x);
  }
};

struct Floor {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::floor(x);
  }
};

struct Ceil {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::ceil(x);
  }
};

// Halves go to the even neighbour.
struct Round {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::nearbyint(x);
  }
};

struct Sin {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::sin(x);
  }
};

struct Cos {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::cos(x);
  }
};

struct Tan {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::tan(x);
  }
};

struct Asin {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::asin(x);
  }
};

struct Acos {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::acos(x);
  }
};

struct Atan {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::atan(x);
  }
};

struct Sinh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::sinh(x);
  }
};

struct Cosh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::cosh(x);
  }
};

struct Asinh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::asinh(x);
  }
};

struct Acosh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::acosh(x);
  }
};

struct Atanh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return std::atanh(x);
  }
};

struct Erf {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return erf(x);
  }
};

struct Square {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x * x;
  }
};

struct Cube {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x * x * x;
  }
};

template <typename T>
struct Clip {
  T low, high;
  ONNX_TRAIN_HD T operator()(T x) const {
    const T above = x < low ? low : x;
    return above > high ? high : above;
  }
};

}  // namespace onnx_train::math
