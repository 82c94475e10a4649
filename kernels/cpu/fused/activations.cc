// Fused activation functions, their gradients, and the gradient of dropout.
#include "kernels/math/activations.h"
#include "kernels/cpu/fused/maps.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
FusedOperator unary(const char* op) {
  return fused_float_unary(op, [](const Node&, auto) { return Op{}; });
}

// A float attribute, converted to the element type.
template <typename T>
T param(const Node& node, const char* name, float otherwise) {
  return static_cast<T>(node.attr(name, otherwise));
}

Operation make_gelu(const Node& node) {
  const bool tanh = node.attr("approximate", "none") == "tanh";
  if (!is_float_or_double(node.input(0)->dtype())) return {};
  return dispatch_float(node.input(0)->dtype(), [&]<typename T>(T) -> Operation {
    return tanh ? unary_operation<T, T>(math::GeluTanh{}) : unary_operation<T, T>(math::Gelu{});
  });
}

// dx = dy / (1 - ratio) where the mask keeps the element, else 0. Written without branches, so that it vectorizes.
template <typename T>
void drop_gradient(int64_t n, const T* dy, const uint8_t* mask, T kept, T* dx) {
  vectorized([=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T larger = dy[i] / kept;
      dx[i] = mask[i] != 0 ? larger : T{0};
    }
  });
}

Operation make_dropout_gradient(const Node& node) {
  const DType type = node.input(0)->dtype(), ratio = node.input(2)->dtype();
  if (!is_float_or_double(type) || !is_float_or_double(ratio) || node.input(1)->dtype() != DType::kBool) return {};
  if (num_elements(node.input(2)->type().shape()) != 1) return {};
  return dispatch_float(type, [&]<typename T>(T) {
    return dispatch_float(ratio, [&]<typename R>(R) -> Operation {
      return [](int64_t n, const FusedOperand* in, void* out) {
        const T kept = 1 - static_cast<T>(static_cast<double>(*in[2].as<R>()));
        drop_gradient(n, in[0].as<T>(), in[1].as<uint8_t>(), kept, static_cast<T*>(out));
      };
    });
  });
}

FusedOperator swish(const char* domain) {
  return fused_float_unary(
      "Swish", []<typename T>(const Node& n, T) { return math::Swish<T>{param<T>(n, "alpha", 1)}; }, domain);
}

Operation make_swish_gradient(const Node& node) {
  if (!is_float_or_double(node.input(0)->dtype()) || !one_type(node)) return {};
  return dispatch_float(node.input(0)->dtype(), [&]<typename T>(T) -> Operation {
    return binary_operation<T, T, T>(math::SwishGrad<T>{param<T>(node, "alpha", 1)});
  });
}

std::vector<FusedOperator> with_parameters() {
  return {
      fused_float_unary("LeakyRelu",
                        []<typename T>(const Node& n, T) { return math::LeakyRelu<T>{param<T>(n, "alpha", 0.01f)}; }),
      fused_float_unary("Elu",
                        []<typename T>(const Node& n, T) {
                          return math::Exponential<T>{1, param<T>(n, "alpha", 1), 1};
                        }),
      fused_float_unary("Selu",
                        []<typename T>(const Node& n, T) {
                          return math::Exponential<T>{param<T>(n, "gamma", 1.05070102214813232421875f),
                                                      param<T>(n, "alpha", 1.67326319217681884765625f), 1};
                        }),
      fused_float_unary("Celu",
                        []<typename T>(const Node& n, T) {
                          const T alpha = param<T>(n, "alpha", 1);
                          return math::Exponential<T>{1, alpha, alpha};
                        }),
      fused_float_unary("ThresholdedRelu",
                        []<typename T>(const Node& n, T) { return math::ThresholdedRelu<T>{param<T>(n, "alpha", 1)}; }),
      fused_float_unary("Shrink",
                        []<typename T>(const Node& n, T) {
                          return math::Shrink<T>{param<T>(n, "bias", 0), param<T>(n, "lambd", 0.5f)};
                        }),
      fused_float_unary("HardSigmoid",
                        []<typename T>(const Node& n, T) {
                          return math::HardSigmoid<T>{param<T>(n, "alpha", 0.2f), param<T>(n, "beta", 0.5f)};
                        }),
      swish(""),
      swish(kDomain),
  };
}

}  // namespace

std::vector<FusedOperator> fused_activations() {
  std::vector<FusedOperator> all = {
      unary<math::Relu>("Relu"),
      fused_float_binary<math::PRelu>("PRelu"),
      unary<math::Sigmoid>("Sigmoid"),
      unary<math::HardSwish>("HardSwish"),
      unary<math::Tanh>("Tanh"),
      unary<math::Softplus>("Softplus"),
      unary<math::Softsign>("Softsign"),
      {"Gelu", make_gelu, "", 1},
      unary<math::Mish>("Mish"),
      fused_float_binary<math::ReluGrad>("ReluGrad", kDomain),
      fused_float_binary<math::SigmoidGrad>("SigmoidGrad", kDomain),
      fused_float_binary<math::TanhGrad>("TanhGrad", kDomain),
      fused_float_binary<math::GeluGrad>("GeluGrad", kDomain),
      fused_float_binary<math::GeluTanhGrad>("GeluTanhGrad", kDomain),
      {"SwishGrad", make_swish_gradient, kDomain},
      {"DropoutGrad", make_dropout_gradient, kDomain, 2},
  };
  for (FusedOperator& row : with_parameters()) all.push_back(std::move(row));
  return all;
}

}  // namespace onnx_train::cpu
