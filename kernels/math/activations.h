// ONNX activation functions, and those derivatives that have their own kernels, as scalar functors. Parameters have the
// element type. Stateless; host and device code share them.
#pragma once

#include "kernels/math/vector_math.h"

namespace onnx_train::math {

// NaN stays NaN.
struct Relu {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};

template <typename T>
struct LeakyRelu {
  T alpha;
  ONNX_TRAIN_HD T operator()(T x) const {
    const T scaled = alpha * x;
    return x < T{0} ? scaled : x;
  }
};

struct PRelu {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x, T slope) const {
    const T scaled = slope * x;
    return x < T{0} ? scaled : x;
  }
};

// scale · (x, or alpha (exp(x / width) - 1) for negative x). Elu, Selu and Celu use it.
template <typename T>
struct Exponential {
  T scale, alpha, width;
  ONNX_TRAIN_HD T operator()(T x) const {
    const T curve = alpha * expm1(x / width);
    return scale * (x > T{0} ? x : curve);
  }
};

template <typename T>
struct ThresholdedRelu {
  T alpha;
  ONNX_TRAIN_HD T operator()(T x) const { return x <= alpha ? T{0} : x; }
};

struct Sigmoid {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return sigmoid(x);
  }
};

template <typename T>
struct HardSigmoid {
  T alpha, beta;
  ONNX_TRAIN_HD T operator()(T x) const {
    const T y = alpha * x + beta;
    const T above = y < T{0} ? T{0} : y;
    return above > T{1} ? T{1} : above;
  }
};

struct HardSwish {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x * HardSigmoid<T>{T{1} / T{6}, T(0.5)}(x);
  }
};

struct Tanh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return tanh(x);
  }
};

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
struct Softplus {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return Relu{}(x) + log1p_of_fraction(exp(-std::fabs(x)));
  }
};

struct Softsign {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x / (T{1} + std::fabs(x));
  }
};

// x Φ(x), where Φ is the cumulative distribution function of the normal distribution.
struct Gelu {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return T(0.5) * x * (T{1} + erf(x * T(0.70710678118654752)));
  }
};

// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2
struct GeluTanh {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    const T u = T(0.79788456080286536) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T{1} + tanh(u));
  }
};

template <typename T>
struct Swish {
  T alpha;
  ONNX_TRAIN_HD T operator()(T x) const { return x * sigmoid(alpha * x); }
};

struct Mish {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T x) const {
    return x * tanh(Softplus{}(x));
  }
};

template <typename T>
struct Shrink {
  T bias, lambda;
  ONNX_TRAIN_HD T operator()(T x) const {
    const T below = x < -lambda ? x + bias : T{0};
    const T y = x > lambda ? x - bias : below;
    return x != x ? x : y;
  }
};

// ---- Gradients: functions of dy and either y or x

struct ReluGrad {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T dy, T y) const {
    return y > T{0} ? dy : T{0};
  }
};

struct SigmoidGrad {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T dy, T y) const {
    return dy * (y * (T{1} - y));
  }
};

struct TanhGrad {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T dy, T y) const {
    return dy * (T{1} - y * y);
  }
};

// dy (Φ(x) + x φ(x)), φ(x) = exp(-x²/2) / √(2π)
// Written so that the compiler can contract it to FMAs in only one way. In a sum of two products it may contract
// either, and chooses differently in the vector loop and in the last few elements.
struct GeluGrad {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T dy, T x) const {
    const T cumulative = T(0.5) + T(0.5) * erf(x * T(0.70710678118654752));
    const T density = T(0.39894228040143268) * exp(T(-0.5) * x * x);
    return dy * (cumulative + x * density);
  }
};

// With s = sigmoid(alpha x): dy (s + alpha x s (1 - s))
template <typename T>
struct SwishGrad {
  T alpha;
  ONNX_TRAIN_HD T operator()(T dy, T x) const {
    const T scaled = alpha * x, s = sigmoid(scaled);
    return dy * (s + scaled * (s * (T{1} - s)));
  }
};

// With t = tanh(u), u = √(2/π) (x + 0.044715 x³): dy (1 + t + x (1 - t²) u') / 2
struct GeluTanhGrad {
  template <typename T>
  ONNX_TRAIN_HD T operator()(T dy, T x) const {
    const T square = x * x;
    const T t = tanh(T(0.79788456080286536) * (x + T(0.044715) * square * x));
    const T slope = T(0.79788456080286536) * (T{1} + T(0.134145) * square);
    return dy * (T(0.5) * (T{1} + t + x * (T{1} - t * t) * slope));
  }
};

// dy / (1 - ratio) where dropout kept the element, else 0. `kept` is 1 - ratio; the mask is read as bytes. Written
// without branches, so that it vectorizes.
template <typename T>
struct DropoutGrad {
  T kept;
  template <typename R>
  ONNX_TRAIN_HD static DropoutGrad of_ratio(R ratio) {
    return {1 - static_cast<T>(static_cast<double>(ratio))};
  }
  ONNX_TRAIN_HD T operator()(T dy, uint8_t mask) const {
    const T larger = dy / kept;
    return mask != 0 ? larger : T{0};
  }
};

}  // namespace onnx_train::math
