// Variants of products: with transposes folded into the operands (fold_transposes.cc), with 16-bit operands, which the
// bodies convert to float32 (assign_types.cc), and with a bias or the sums of an operand (product_epilogues.cc).
#include <array>

#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/epilogue.h"

namespace onnx_train {
namespace {

// An operand: a value of the body, and the axis over which the product sums.
struct Factor {
  const char* value;
  int axis;
};

// Returns the function `op`, whose `lines` compute PRODUCT, with the steps `bias`, one number per column of y, and
// `sums_of_a` or `sums_of_b`, the sums of that factor over its axis.
FunctionText with_epilogue(const FunctionCall& call, const std::string& op, std::string attributes, std::string lines,
                           const std::array<Factor, 2>& factors) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  std::string inputs = "a, b", outputs = "y", product = "y", more, overload;
  if (!epilogue.empty()) attributes += concat(attributes.empty() ? "" : ", ", kEpilogue, ": string");
  if (has_step(epilogue, EpilogueStep::kBias)) {
    inputs += ", bias";
    product = "product";
    more = "  y = Add (product, bias)\n";
    overload = "bias";
  }
  constexpr std::array kSums = {EpilogueStep::kSumsOfA, EpilogueStep::kSumsOfB};
  for (const EpilogueStep step : epilogue) {
    if (step != EpilogueStep::kBias && step != kSums[0] && step != kSums[1])
      fail("no body of ", op, " has the step '", row_of(step).name, "'");  // fuse_products.cc writes these
  }
  for (size_t operand = 0; operand < kSums.size(); ++operand) {
    if (!has_step(epilogue, kSums[operand])) continue;
    const Factor& factor = factors[operand];
    outputs += ", sums";
    more += concat("  axis = Constant <value_ints = [", factor.axis, "]> ()\n  sums = ReduceSum <keepdims = 0> (",
                   factor.value, ", axis)\n");
    overload += concat(row_of(kSums[operand]).name, "_", factor.axis);
  }
  const std::string word = "PRODUCT";
  lines.replace(lines.find(word), word.size(), product);
  if (!attributes.empty()) attributes = concat("<", attributes, "> ");
  return {concat(op, " ", attributes, "(", inputs, ") => (", outputs, ")\n{", lines, more, "}"), overload};
}

// Returns matrices, or batches of them, as MatMul multiplies them.
std::array<Factor, 2> factors_of(const FunctionCall& call, const char* a, const char* b) {
  const auto rank = [&](size_t i) { return static_cast<int>(call.inputs[i].rank()); };
  return {{{a, rank(0) - 1}, {b, rank(1) - 2}}};
}

constexpr const char* kMatMulLines = R"(
  PRODUCT = MatMul (a, b)
)";

FunctionText text_of_matmul(const FunctionCall& call) {
  return with_epilogue(call, "MatMul", "", kMatMulLines, factors_of(call, "a", "b"));
}

constexpr const char* kTransposedMatMulLines = R"(
  left = Transpose <perm: ints = @perm_a> (a)
  right = Transpose <perm: ints = @perm_b> (b)
  in_order = MatMul (left, right)
  PRODUCT = Transpose <perm: ints = @perm_y> (in_order)
)";

FunctionText text_of_transposed_matmul(const FunctionCall& call) {
  return with_epilogue(call, "TransposedMatMul", "perm_a: ints, perm_b: ints, perm_y: ints", kTransposedMatMulLines,
                       factors_of(call, "left", "right"));
}

constexpr const char* kGemm = R"(
Gemm <alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0> (a, b, c) => (y)
{
  y = Gemm <alpha: float = @alpha, beta: float = @beta, transA: int = @transA, transB: int = @transB> (a, b, c)
})";

constexpr const char* kGemmLines = R"(
  PRODUCT = Gemm <alpha: float = @alpha, transA: int = @transA, transB: int = @transB> (a, b)
)";

// With an epilogue, the function has no C.
FunctionText text_of_gemm(const FunctionCall& call) {
  if (epilogue_of(call.attrs).empty()) return {kGemm, ""};
  return with_epilogue(call, "Gemm", "alpha: float = 1.0, transA: int = 0, transB: int = 0", kGemmLines,
                       {{{"a", is_set(call.attrs, "transA") ? 0 : 1}, {"b", is_set(call.attrs, "transB") ? 1 : 0}}});
}

// Changes the text "Name <..> (a, b, ..) => (..) { .. }" to 16-bit operands a and b, which the body casts to float32.
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

// Returns the row of a function whose first two inputs may be 16-bit floats.
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
      product({"MatMul", text_of_matmul}),
      product({"Gemm", text_of_gemm}),
      product({"TransposedMatMul", text_of_transposed_matmul}),
  };
  for (const FunctionRow& convolution : convolution_layouts()) rows.push_back(product(convolution));
  return rows;
}

}  // namespace onnx_train
