// Rounding to a narrower type; mixed precision adds these functions to a graph
// (onnx_passes/precision/mixed_precision.h).
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

// y = x, rounded to the nearest number of type `to`. y has the type of x and can be stored as `to` without loss.
FunctionText round_to(const FunctionCall& call) {
  Body f("RoundTo <to> (x) => (y)", call);
  const DType dtype = call.inputs[0].dtype();
  if (dtype != DType::kFloat) f.depends_on(name(dtype));
  return f.text({cast(f.op("Cast", {f.input("x")}, "to: int = @to"), dtype)});
}

}  // namespace

std::vector<FunctionRow> precision_functions() {
  return {
      {"RoundTo", round_to},
      // y = x; the gradient of y is rounded to type `to`.
      function("RoundGradientTo <to> (x) => (y)", [](Term x) { return x; }),
      // y = x / scale, rounded to the nearest 8-bit float of type `to`, times scale. `scale` is a scalar. What is too
      // large becomes the largest number of the type.
      function("FakeQuantize <to> (x, scale) => (y)",
               [](Body& f, Term x, Term scale) {
                 const Term quantized = f.op("QuantizeLinear", {x, scale}, "output_dtype: int = @to");
                 return f.op("DequantizeLinear", {quantized, scale});
               }),
  };
}

}  // namespace onnx_train
