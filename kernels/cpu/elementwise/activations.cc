#include "kernels/cpu/elementwise/activations.h"

#include <iterator>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/math/activations.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
Kernel unary(const char* op) {
  return float_unary(op, [](const Node&, auto) { return Op{}; });
}

template <typename Op>
Kernel gradient(const char* op) {
  return float_binary(
      op, [](const Node&, auto) { return Op{}; }, kDomain);
}

// A float attribute, converted to the element type.
template <typename T>
T param(const Node& node, const char* name, float otherwise) {
  return static_cast<T>(node.attr(name, otherwise));
}

Kernel swish(const char* domain) {
  return float_unary(
      "Swish", []<typename T>(const Node& n, T) { return math::Swish<T>{param<T>(n, "alpha", 1)}; }, domain);
}

Prepared prepare_gelu(const NodeSpec& spec) {
  const bool tanh = spec.node().attr("approximate", "none") == "tanh";
  return dispatch_float(spec.in_type(), [&](auto t) {
    using T = decltype(t);
    return tanh ? prepare_unary<T, T>(spec, math::GeluTanh{}) : prepare_unary<T, T>(spec, math::Gelu{});
  });
}

std::vector<Kernel> rectifier_kernels() {
  return {
      unary<math::Relu>("Relu"),
      float_unary("LeakyRelu",
                  []<typename T>(const Node& n, T) { return math::LeakyRelu<T>{param<T>(n, "alpha", 0.01f)}; }),
      float_binary("PRelu", [](const Node&, auto) { return math::PRelu{}; }),
      float_unary("Elu",
                  []<typename T>(const Node& n, T) {
                    return math::Exponential<T>{1, param<T>(n, "alpha", 1), 1};
                  }),
      float_unary("Selu",
                  []<typename T>(const Node& n, T) {
                    return math::Exponential<T>{param<T>(n, "gamma", 1.05070102214813232421875f),
                                                param<T>(n, "alpha", 1.67326319217681884765625f), 1};
                  }),
      float_unary("Celu",
                  []<typename T>(const Node& n, T) {
                    const T alpha = param<T>(n, "alpha", 1);
                    return math::Exponential<T>{1, alpha, alpha};
                  }),
      float_unary("ThresholdedRelu",
                  []<typename T>(const Node& n, T) { return math::ThresholdedRelu<T>{param<T>(n, "alpha", 1)}; }),
      float_unary("Shrink",
                  []<typename T>(const Node& n, T) {
                    return math::Shrink<T>{param<T>(n, "bias", 0), param<T>(n, "lambd", 0.5f)};
                  }),
  };
}

std::vector<Kernel> smooth_kernels() {
  return {
      unary<math::Sigmoid>("Sigmoid"),
      float_unary("HardSigmoid",
                  []<typename T>(const Node& n, T) {
                    return math::HardSigmoid<T>{param<T>(n, "alpha", 0.2f), param<T>(n, "beta", 0.5f)};
                  }),
      unary<math::HardSwish>("HardSwish"),
      unary<math::Tanh>("Tanh"),
      unary<math::Softplus>("Softplus"),
      unary<math::Softsign>("Softsign"),
      {"Gelu", takes_floats, prepare_gelu},
      swish(""),
      swish(kDomain),
      unary<math::Mish>("Mish"),
      gradient<math::ReluGrad>("ReluGrad"),
      gradient<math::SigmoidGrad>("SigmoidGrad"),
      gradient<math::TanhGrad>("TanhGrad"),
      gradient<math::GeluGrad>("GeluGrad"),
      float_binary(
          "SwishGrad", []<typename T>(const Node& n, T) { return math::SwishGrad<T>{param<T>(n, "alpha", 1)}; },
          kDomain),
      gradient<math::GeluTanhGrad>("GeluTanhGrad"),
  };
}

}  // namespace

std::vector<Kernel> activation_kernels() {
  std::vector<Kernel> all;
  for (auto* part : {rectifier_kernels, smooth_kernels, softmax_kernels}) {
    std::vector<Kernel> kernels = part();
    std::move(kernels.begin(), kernels.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace onnx_train::cpu
