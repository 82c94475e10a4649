// Quantization: the operators of ONNX, which lowering expands, and ours.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

std::vector<Operator> quantization_operators() {
  // Scales are settings: no weights, but trained where they are named.
  const auto elementwise = [](const char* op, const char* shapes, const char* domain, ElementTypes types) {
    return Operator{op, shapes, domain, types}.of_kind(OperatorKind::kElementwise).with_settings({1, InputRange::kAll});
  };
  return {
      elementwise("QuantizeLinear", "x[S...] scale zero_point? -> y[S...]", "", ElementTypes::kOfSchema),
      elementwise("DequantizeLinear", "x[S...] scale zero_point? -> y[S...]", "", ElementTypes::kOfSchema),
      elementwise("FakeQuantizeInteger", "x[S...] scale[~S...] zero_point[~S...] -> y[S...]", kDomain,
                  ElementTypes::kOneFloat),
      elementwise("FakeQuantizeActivation", "x[S...] range[2] -> y[S...]", kDomain, ElementTypes::kOneFloat),
      {"UnpackInt4", "packed[_...] -> q[_...]", kDomain},
      {"FakeQuantizeWeight", "w[S...] -> y[S...]", kDomain, ElementTypes::kOneFloat},
  };
}

}  // namespace onnx_train
