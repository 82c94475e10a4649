// Unary operators as scalar functors. Integers wrap around; NaN propagates through Sign and Clip. Stateless; host and
// device code share them.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/math/vector_math.h"
#include "kernels/math/wrapping.h"

namespace onnx_train::math {

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

// ---- Floats only

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

// Rounds halves to even.
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

// The bounds of ONNX's Clip are optional: null for none.
template <typename T>
struct Clip {
  T low, high;
  ONNX_TRAIN_HD static Clip between(const T* low, const T* high) {
    using Limits = std::numeric_limits<T>;
    constexpr T kLowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    constexpr T kHighest = Limits::has_infinity ? Limits::infinity() : Limits::max();
    return {low ? *low : kLowest, high ? *high : kHighest};
  }
  ONNX_TRAIN_HD T operator()(T x) const {
    const T above = x < low ? low : x;
    return above > high ? high : above;
  }
};

template <typename T>
struct Scale {
  T factor;
  ONNX_TRAIN_HD T operator()(T x) const { return x * factor; }
};

}  // namespace onnx_train::math
