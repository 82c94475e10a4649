#include "kernels/cpu/recurrent/gates.h"

#include "kernels/cpu/support/maps.h"
#include "kernels/math/activations.h"

namespace onnx_train::cpu {

using Kind = GateActivation::Kind;

template <typename T>
void activate(const GateActivation& f, float limit, int64_t n, const T* x, T* y) {
  const T alpha = f.alpha, beta = f.beta;
  if (limit != 0) {
    const T most = limit;
    map(n, x, y, [=](T v) { return v < -most ? -most : v > most ? most : v; });
    x = y;
  }
  switch (f.kind) {
    case Kind::kSigmoid: return map(n, x, y, math::Sigmoid{});
    case Kind::kTanh: return map(n, x, y, math::Tanh{});
    case Kind::kRelu: return map(n, x, y, math::Relu{});
    case Kind::kLeakyRelu: return map(n, x, y, math::LeakyRelu<T>{alpha});
    case Kind::kThresholdedRelu: return map(n, x, y, math::ThresholdedRelu<T>{alpha});
    case Kind::kElu: return map(n, x, y, math::Exponential<T>{1, alpha, 1});
    case Kind::kHardSigmoid: return map(n, x, y, math::HardSigmoid<T>{alpha, beta});
    case Kind::kScaledTanh: return map(n, x, y, [=](T v) { return alpha * math::tanh(beta * v); });
    case Kind::kAffine: return map(n, x, y, [=](T v) { return alpha * v + beta; });
    case Kind::kSoftsign: return map(n, x, y, math::Softsign{});
    case Kind::kSoftplus: return map(n, x, y, math::Softplus{});
  }
}

namespace {

// dy = slope(dy, y), element by element.
template <typename T, typename Slope>
void scale(int64_t n, const T* y, T* dy, Slope slope) {
  map(n, dy, true, y, true, dy, slope);
}

}  // namespace

template <typename T>
void differentiate(const GateActivation& f, int64_t n, const T* y, T* dy) {
  const T alpha = f.alpha, beta = f.beta, zero = 0, one = 1;
  switch (f.kind) {
    case Kind::kSigmoid: return scale(n, y, dy, math::SigmoidGrad{});
    case Kind::kTanh: return scale(n, y, dy, math::TanhGrad{});
    case Kind::kRelu: return scale(n, y, dy, math::ReluGrad{});
    case Kind::kLeakyRelu: return scale(n, y, dy, [=](T d, T v) { return v < zero ? d * alpha : d; });
    case Kind::kThresholdedRelu: return scale(n, y, dy, [=](T d, T v) { return v == zero ? zero : d; });
    case Kind::kElu: return scale(n, y, dy, [=](T d, T v) { return v < zero ? d * (v + alpha) : d; });
    case Kind::kHardSigmoid:
      return scale(n, y, dy, [=](T d, T v) { return (v > zero) & (v < one) ? d * alpha : zero; });
    case Kind::kScaledTanh: return scale(n, y, dy, [=](T d, T v) { return d * (beta * (alpha - v * v / alpha)); });
    case Kind::kAffine: return scale(n, y, dy, [=](T d, T) { return d * alpha; });
    case Kind::kSoftsign:
      return scale(n, y, dy, [=](T d, T v) {
        const T rest = one - std::fabs(v);
        return d * (rest * rest);
      });
    case Kind::kSoftplus: return scale(n, y, dy, [=](T d, T v) { return d * (one - math::exp(-v)); });
  }
}

template void activate(const GateActivation&, float, int64_t, const float*, float*);
template void activate(const GateActivation&, float, int64_t, const double*, double*);
template void differentiate(const GateActivation&, int64_t, const float*, float*);
template void differentiate(const GateActivation&, int64_t, const double*, double*);

}  // namespace onnx_train::cpu
