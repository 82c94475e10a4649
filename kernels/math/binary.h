// Binary operators as scalar functors. They define results where C++ does not: integers wrap around, integer division
// by zero gives 0, shifts past the width give 0. NaN propagates through Max and Min. Stateless; host and device code
// share them.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/math/wrapping.h"

namespace onnx_train::math {

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

// Integers truncate towards zero.
struct Div {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return a / b;
    } else {
      if (b == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return static_cast<T>(0 - wrapping(a));  // the smallest integer has no negation
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

// The remainder with the sign of the divisor, like Python's %. ONNX's Mod with fmod=0.
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

// The remainder with the sign of the dividend, like C's fmod. ONNX's Mod with fmod=1.
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

// The result has the type of the base; the exponent may have another type.
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

// Squares and cubes of floats, the common powers, are computed as products (Square, Cube in unary.h). Returns 2 or 3
// for the exponents of these, 0 for all others.
template <typename T, typename E>
ONNX_TRAIN_HD inline int exponent_of_product(E exponent) {
  if (!std::is_floating_point_v<T>) return 0;
  return exponent == E{2} ? 2 : exponent == E{3} ? 3 : 0;
}

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

// On booleans (And, Or, Xor, Not) and, bitwise, on integers.
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

// Shifts by a negative number or past the width give 0.
struct ShiftLeft {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T bits) const {
    return bits >= 0 && bits < T{8 * sizeof(T)} ? static_cast<T>(wrapping(a) << bits) : T{0};
  }
};

// Arithmetic shift: signed numbers keep their sign.
struct ShiftRight {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T a, T bits) const {
    const T emptied = a < 0 ? static_cast<T>(-1) : T{0};
    return bits >= 0 && bits < T{8 * sizeof(T)} ? static_cast<T>(a >> bits) : emptied;
  }
};

}  // namespace onnx_train::math
