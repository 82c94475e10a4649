// Products into which fold_transposes.cc has folded the transposes of their operands, and products with bfloat16
// operands, which their bodies convert to float32 first (bfloat16_products.cc).
#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

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

constexpr const char* kTransposedMatMul = R"(
TransposedMatMul <perm_a: ints, perm_b: ints, perm_y: ints> (a, b) => (y)
{
  left = Transpose <perm: ints = @perm_a> (a)
  right = Transpose <perm: ints = @perm_b> (b)
  product = MatMul (left, right)
  y = Transpose <perm: ints = @perm_y> (product)
})";

// Returns the text "Name <..> (a, b, ..) => (..) { .. }" changed to operands a and b of a 16-bit type, which the body
// converts to float32 first.
FunctionText with_narrow_operands(FunctionText function, DType dtype) {
  const std::string text = function.text.substr(function.text.find_first_not_of('\n'));
  const size_t first = text.find('(') + 1, second = text.find(',', first) + 1, end = text.find_first_of(",)", second);
  const size_t body = text.find('{', text.find("=>")) + 1;
  const std::string a = text.substr(first, second - 1 - first);
  const std::string b = text.substr(text.find_first_not_of(' ', second), end - text.find_first_not_of(' ', second));
  const auto widened = [](const std::string& operand) {
    return concat("\n  ", operand, " = Cast <to = ", static_cast<int>(DType::kFloat), "> (", operand, "_narrow)");
  };
  function.text = concat(text.substr(0, first), a, "_narrow, ", b, "_narrow", text.substr(end, body - end), widened(a),
                         widened(b), text.substr(body));
  function.overload = concat(name(dtype), function.overload.empty() ? "" : "_", function.overload);
  return function;
}

// The row of a function whose first two inputs are operands, which may be 16-bit floats.
FunctionRow product(const FunctionRow& wide) {
  return {wide.op, [text = wide.text](const FunctionCall& call) {
            const DType dtype = call.inputs[0].dtype();
            const bool narrow = dtype == DType::kBFloat16 || dtype == DType::kFloat16;
            return narrow ? with_narrow_operands(text(call), dtype) : text(call);
          }};
}

}  // namespace

std::vector<FunctionRow> lowered_product_functions() {
  std::vector<FunctionRow> rows = {
      product(function("MatMul", kMatMul)),
      product(function("Gemm", kGemm)),
      product(function("TransposedMatMul", kTransposedMatMul)),
  };
  for (const FunctionRow& convolution : convolution_layouts()) rows.push_back(product(convolution));
  return rows;
}

}  // namespace onnx_train
