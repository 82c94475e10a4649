#include <cmath>
#include <numbers>

#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

using std::numbers::pi;

// Φ(x) + x φ(x), Φ and φ the normal distribution: Φ(x) = (1 + erf(x/√2)) / 2, φ(x) = exp(-x²/2) / √(2π)
Term gelu_slope(const Term& x) {
  const Term cumulative = (erf(x * (std::numbers::sqrt2 / 2)) + 1) * 0.5;
  const Term density = exp(x * x * -0.5) * std::sqrt(0.5 / pi);
  return cumulative + x * density;
}

// ((1 + t) + x (1 - t²) u') / 2, u' = √(2/π) (1 + 0.134145 x²)
Term gelu_tanh_slope(const Term& x) {
  const double scale = std::sqrt(2 / pi);
  const Term square = x * x, t = tanh((x + square * x * 0.044715) * scale);
  const Term chain = (1 - t * t) * ((square * 0.134145 + 1) * scale);
  return ((1 + t) + x * chain) * 0.5;
}

Term axes_of(Body& f) { return unsqueeze(f.attribute("axis"), {0}); }

}  // namespace

std::vector<FunctionRow> activation_functions() {
  return {
      // y = max(x, 0)    dx = dy where y > 0, else 0
      function("ReluGrad (dy, y) => (dx)", [](Term dy, Term y) { return where(y > 0, dy, 0); }),
      // y = sigmoid(x)    dx = dy y (1 - y)
      function("SigmoidGrad (dy, y) => (dx)", [](Term dy, Term y) { return dy * (y * (1 - y)); }),
      // y = tanh(x)    dx = dy (1 - y²)
      function("TanhGrad (dy, y) => (dx)", [](Term dy, Term y) { return dy * (1 - y * y); }),
      // y = x Φ(x)    dx = dy (Φ(x) + x φ(x))
      function("GeluGrad (dy, x) => (dx)", [](Term dy, Term x) { return dy * gelu_slope(x); }),
      // y = x (1 + t) / 2, t = tanh(u), u = √(2/π) (x + 0.044715 x³)
      function("GeluTanhGrad (dy, x) => (dx)", [](Term dy, Term x) { return dy * gelu_tanh_slope(x); }),
      // y = x sigmoid(alpha x): for models of an opset before 24, which has it
      function("Swish <alpha: float = 1> (x) => (y)",
               [](Body& f, Term x) { return x * sigmoid(x * f.attribute("alpha")); }),
      // y = x s, s = sigmoid(alpha x)    dx = dy (s + alpha x s (1 - s))
      function("SwishGrad <alpha: float = 1> (dy, x) => (dx)",
               [](Body& f, Term dy, Term x) {
                 const Term scaled = x * f.attribute("alpha"), gate = sigmoid(scaled);
                 return dy * (gate + scaled * (gate * (1 - gate)));
               }),
      // y = softmax(x) along the axis    dx = y (dy - Σ dy y)
      function("SoftmaxGrad <axis: int = -1> (dy, y) => (dx)",
               [](Body& f, Term dy, Term y) { return y * (dy - reduce_sum(dy * y, axes_of(f))); }),
      // y = log softmax(x) along the axis    dx = dy - exp(y) Σ dy
      function("LogSoftmaxGrad <axis: int = -1> (dy, y) => (dx)",
               [](Body& f, Term dy, Term y) { return dy - exp(y) * reduce_sum(dy, axes_of(f)); }),
  };
}

}  // namespace onnx_train
