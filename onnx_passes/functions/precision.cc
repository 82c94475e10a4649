// Rounding to bfloat16, as mixed precision sets it into a graph (passes/mixed_precision.h), and products whose operands
// are stored in bfloat16, which lowering makes of it (kernels/cpu/lowering/bfloat16_products.cc).
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// y = x, rounded to the nearest bfloat16. The type stays: who stores y in 16 bits loses nothing.
FunctionText round_to_bfloat16(const FunctionCall& call) {
  const DType dtype = call.inputs[0].dtype();
  return {concat("RoundToBfloat16 (x) => (y) {\n  narrow = Cast <to = ", static_cast<int>(DType::kBFloat16),
                 "> (x)\n  y = Cast <to = ", static_cast<int>(dtype), "> (narrow)\n}"),
          dtype == DType::kFloat ? "" : name(dtype)};
}

// y = x; the gradient that comes back is rounded.
constexpr const char* kRoundGradient = R"(
RoundGradientToBfloat16 (x) => (y)
{
  y = Identity (x)
})";

constexpr const char* kMatMul = R"(
MatMul (a, b) => (y)
{
  y = MatMul (a, b)
})";

constexpr const char* kGemm = R"(
Gemm <alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0> (a, b, c) => (y)
{
  y = Gemm <alpha: float = @alpha, beta: float = @beta, transA: int = @transA, transB: int = @transB> (a, b, c)
})";

constexpr const char* kConv = R"(
Conv <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, w, bias) => (y)
{
  y = Conv <group: int = @group, strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads>
      (x, w, bias)
})";

// "Name <..> (a, b, ..) => (..) { .. }" becomes Bfloat16Name, whose operands a and b are bfloat16 and widened first.
FunctionText with_narrow_operands(FunctionText function) {
  const std::string text = function.text.substr(function.text.find_first_not_of('\n'));
  const size_t first = text.find('(') + 1, second = text.find(',', first) + 1, end = text.find_first_of(",)", second);
  const size_t body = text.find('{', text.find("=>")) + 1;
  const std::string a = text.substr(first, second - 1 - first);
  const std::string b = text.substr(text.find_first_not_of(' ', second), end - text.find_first_not_of(' ', second));
  const auto widened = [](const std::string& operand) {
    return concat("\n  ", operand, " = Cast <to = ", static_cast<int>(DType::kFloat), "> (", operand, "_narrow)");
  };
  function.text = concat("Bfloat16", text.substr(0, first), a, "_narrow, ", b, "_narrow", text.substr(end, body - end),
                         widened(a), widened(b), text.substr(body));
  return function;
}

FunctionRow with_narrow_operands(const char* op, const FunctionRow& wide) {
  return {op, [wide](const FunctionCall& call) { return with_narrow_operands(wide.text(call)); }};
}

// The row of one of our functions with two operands first.
FunctionRow row_of(const std::vector<FunctionRow>& rows, const std::string& op) {
  for (const FunctionRow& row : rows) {
    if (op == row.op) return row;
  }
  fail("there is no function ", op);
}

}  // namespace

std::vector<FunctionRow> precision_functions() {
  return {
      {"RoundToBfloat16", round_to_bfloat16},
      function("RoundGradientToBfloat16", kRoundGradient),
      with_narrow_operands("Bfloat16MatMul", function("MatMul", kMatMul)),
      with_narrow_operands("Bfloat16Gemm", function("Gemm", kGemm)),
      with_narrow_operands("Bfloat16TransposedMatMul", row_of(product_functions(), "TransposedMatMul")),
      with_narrow_operands("Bfloat16Conv", function("Conv", kConv)),
      with_narrow_operands("Bfloat16ConvGradInput", row_of(convolution_functions(), "ConvGradInput")),
      with_narrow_operands("Bfloat16ConvGradWeight", row_of(convolution_functions(), "ConvGradWeight")),
      with_narrow_operands("Bfloat16ChannelsLastConv", row_of(channels_last_functions(), "ChannelsLastConv")),
      with_narrow_operands("Bfloat16ChannelsLastConvGradInput",
                           row_of(channels_last_functions(), "ChannelsLastConvGradInput")),
      with_narrow_operands("Bfloat16ChannelsLastConvGradWeight",
                           row_of(channels_last_functions(), "ChannelsLastConvGradWeight")),
  };
}

}  // namespace onnx_train
