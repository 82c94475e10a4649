// Rounding to a narrower type; mixed precision adds these functions to a graph
// (onnx_passes/precision/mixed_precision.h).
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// y = x, rounded to the nearest number of type `to`. y has the type of x and can be stored as `to` without loss.
FunctionText round_to(const FunctionCall& call) {
  const DType dtype = call.inputs[0].dtype();
  return {concat("RoundTo <to> (x) => (y) {\n  narrow = Cast <to: int = @to> (x)\n  y = Cast <to = ",
                 static_cast<int>(dtype), "> (narrow)\n}"),
          dtype == DType::kFloat ? "" : name(dtype)};
}

// y = x; the gradient of y is rounded to type `to`.
constexpr const char* kRoundGradientTo = R"(
RoundGradientTo <to> (x) => (y)
{
  y = Identity (x)
})";

// y = x / scale, rounded to the nearest 8-bit float of type `to`, times scale. `scale` is a scalar. What is too large
// becomes the largest number of the type.
constexpr const char* kFakeQuantize = R"(
FakeQuantize <to> (x, scale) => (y)
{
  quantized = QuantizeLinear <output_dtype: int = @to> (x, scale)
  y = DequantizeLinear (quantized, scale)
})";

}  // namespace

std::vector<FunctionRow> precision_functions() {
  return {
      {"RoundTo", round_to}, function("RoundGradientTo", kRoundGradientTo), function("FakeQuantize", kFakeQuantize)};
}

}  // namespace onnx_train
