// The activation functions of recurrent cells and their slopes, as functors that are chosen when a kernel runs. The
// slope follows from the function's value. Pure functions; host and device code share them.
#pragma once

#include "kernels/math/activations.h"
#include "onnx_passes/operators/gate_activation.h"

namespace onnx_train::math {

template <typename T>
struct ScaledTanh {
  T alpha, beta;
  ONNX_TRAIN_HD T operator()(T x) const { return alpha * tanh(beta * x); }
};

template <typename T>
struct Affine {
  T alpha, beta;
  ONNX_TRAIN_HD T operator()(T x) const { return alpha * x + beta; }
};

// Calls use(f) with the activation as a functor T(T x), and returns what it returns.
template <typename T, typename F>
ONNX_TRAIN_HD auto with_activation(const GateActivation& f, F&& use) {
  const T alpha = f.alpha, beta = f.beta;
  switch (f.kind) {
    case GateActivation::kSigmoid: return use(Sigmoid{});
    case GateActivation::kTanh: return use(Tanh{});
    case GateActivation::kRelu: return use(Relu{});
    case GateActivation::kLeakyRelu: return use(LeakyRelu<T>{alpha});
    case GateActivation::kThresholdedRelu: return use(ThresholdedRelu<T>{alpha});
    case GateActivation::kElu: return use(Exponential<T>{1, alpha, 1});
    case GateActivation::kHardSigmoid: return use(HardSigmoid<T>{alpha, beta});
    case GateActivation::kScaledTanh: return use(ScaledTanh<T>{alpha, beta});
    case GateActivation::kAffine: return use(Affine<T>{alpha, beta});
    case GateActivation::kSoftsign: return use(Softsign{});
    case GateActivation::kSoftplus: break;
  }
  return use(Softplus{});
}

// dy f'(x) from y = f(x).
template <typename T>
struct LeakyReluSlope {
  T alpha;
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return y < T{0} ? dy * alpha : dy; }
};

template <typename T>
struct ThresholdedReluSlope {
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return y == T{0} ? T{0} : dy; }
};

template <typename T>
struct EluSlope {
  T alpha;
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return y < T{0} ? dy * (y + alpha) : dy; }
};

template <typename T>
struct HardSigmoidSlope {
  T alpha;
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return (y > T{0}) & (y < T{1}) ? dy * alpha : T{0}; }
};

template <typename T>
struct ScaledTanhSlope {
  T alpha, beta;
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return dy * (beta * (alpha - y * y / alpha)); }
};

template <typename T>
struct AffineSlope {
  T alpha;
  ONNX_TRAIN_HD T operator()(T dy, T) const { return dy * alpha; }
};

template <typename T>
struct SoftsignSlope {
  ONNX_TRAIN_HD T operator()(T dy, T y) const {
    const T rest = T{1} - std::fabs(y);
    return dy * (rest * rest);
  }
};

template <typename T>
struct SoftplusSlope {
  ONNX_TRAIN_HD T operator()(T dy, T y) const { return dy * (T{1} - exp(-y)); }
};

// Calls use(slope) with a functor T(T dy, T y), and returns what it returns.
template <typename T, typename F>
ONNX_TRAIN_HD auto with_slope(const GateActivation& f, F&& use) {
  const T alpha = f.alpha, beta = f.beta;
  switch (f.kind) {
    case GateActivation::kSigmoid: return use(SigmoidGrad{});
    case GateActivation::kTanh: return use(TanhGrad{});
    case GateActivation::kRelu: return use(ReluGrad{});
    case GateActivation::kLeakyRelu: return use(LeakyReluSlope<T>{alpha});
    case GateActivation::kThresholdedRelu: return use(ThresholdedReluSlope<T>{});
    case GateActivation::kElu: return use(EluSlope<T>{alpha});
    case GateActivation::kHardSigmoid: return use(HardSigmoidSlope<T>{alpha});
    case GateActivation::kScaledTanh: return use(ScaledTanhSlope<T>{alpha, beta});
    case GateActivation::kAffine: return use(AffineSlope<T>{alpha});
    case GateActivation::kSoftsign: return use(SoftsignSlope<T>{});
    case GateActivation::kSoftplus: break;
  }
  return use(SoftplusSlope<T>{});
}

}  // namespace onnx_train::math
