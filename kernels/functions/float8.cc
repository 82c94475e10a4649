// Operands of 8-bit floats and their products (quantize_products.cc).
#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

std::string text_attribute(const FunctionCall& call, const std::string& name) {
  for (const Attr& attr : call.attrs) {
    if (attr.name == name) return std::get<std::string>(attr.value);
  }
  return "";
}

// q = x / scale, rounded to the nearest 8-bit float of type `to`; what is too large becomes the largest number. The
// attribute `stored` says how q is stored: "rows", as x is, "columns", transposed as a matrix of x's last axis, or
// "both". Further outputs are the largest magnitude of x, and the sums of its columns or, if `sums_of` is "stored",
// those of q times scale.
//
// With `activation`, what is quantized is f(x), and with `activation_gradient` f'(operand) x, rounded to 16 bits like
// x.
FunctionText text_of_quantize(const FunctionCall& call) {
  const std::string stored = text_attribute(call, "stored"), activation = text_attribute(call, "activation"),
                    gradient = text_attribute(call, "activation_gradient"), sums_of = text_attribute(call, "sums_of");
  const DType dtype = call.inputs[0].dtype();
  const auto cast = [](const char* to, const char* from, DType type) {
    return concat("  ", to, " = Cast <to = ", static_cast<int>(type), "> (", from, ")\n");
  };
  const bool is_scalar = call.inputs[0].rank() == 0;
  const int last = is_scalar ? 0 : -1;  // axis
  std::string outputs, lines = cast("wide", "x", DType::kFloat), inner;
  const char* x = "wide";
  if (!activation.empty()) {
    lines +=
        concat("  result = ", activation == "GeluTanh" ? "Gelu <approximate = \"tanh\">" : activation, " (wide)\n");
  } else if (!gradient.empty()) {
    inner = gradient + "Grad";
    lines += cast("at", "operand", DType::kFloat) + concat("  result = onnx_train.", inner, " (wide, at)\n");
  }
  if (!activation.empty() || !gradient.empty()) {
    lines += cast("narrow", "result", dtype) + cast("rounded", "narrow", DType::kFloat);
    x = "rounded";
  }
  lines += concat("  rows = QuantizeLinear <output_dtype: int = @to> (", x, ", scale)\n");
  if (stored != "columns") outputs = "rows, ";
  if (stored != "rows") {
    outputs += "columns, ";
    lines += concat("  matrix = Flatten <axis = ", last, "> (rows)\n  columns = Transpose <perm = [1, 0]> (matrix)\n");
  }
  lines += concat("  magnitudes = Abs (", x, ")\n  magnitude = ReduceMax <keepdims = 0> (magnitudes)\n");
  outputs += "magnitude";
  if (!sums_of.empty()) {
    outputs += ", sums";
    if (sums_of == "stored") lines += "  summed = DequantizeLinear (rows, scale)\n";
    lines += concat("  summands = Flatten <axis = ", last, "> (", sums_of == "stored" ? "summed" : x,
                    ")\n  axis = Constant <value_ints = [0]> ()\n  sums = ReduceSum <keepdims = 0> (summands, axis)\n");
  }
  std::string attributes = "to, stored", overload = concat(stored, "_", name(dtype), is_scalar ? "_scalar" : "");
  for (const char* attribute : {"activation", "activation_gradient", "sums_of"}) {
    const std::string value = text_attribute(call, attribute);
    if (value.empty()) continue;
    attributes += concat(", ", attribute);
    overload += concat("_", attribute, "_", value);
  }
  return {concat("Quantize <", attributes, "> (x, scale", gradient.empty() ? "" : ", operand", ") => (", outputs,
                 ")\n{\n", lines, "}"),
          overload, inner};
}

// y = (scale_a a) (scale_b b)ᵀ, and added to it, before y is rounded to type `to`: input 4, a bias [N] or a matrix like
// y. a is [.., K], b is [N, K].
FunctionText text_of_scaled_matmul(const FunctionCall& call) {
  const bool adds = call.inputs.size() > 4;
  return {concat("ScaledMatMul <to> (a, b, scale_a, scale_b", adds ? ", c" : "", R"() => (y)
{
  left = DequantizeLinear (a, scale_a)
  right = DequantizeLinear (b, scale_b)
  columns = Transpose <perm = [1, 0]> (right)
)",
                 adds ? "  product = MatMul (left, columns)\n  wide = CastLike (c, product)\n"
                        "  sum = Add (product, wide)\n"
                      : "  sum = MatMul (left, columns)\n",
                 "  y = Cast <to: int = @to> (sum)\n}"),
          adds ? concat("plus_", name(call.inputs[4].dtype())) : ""};
}

}  // namespace

std::vector<FunctionRow> float8_functions() {
  return {{"Quantize", text_of_quantize}, {"ScaledMatMul", text_of_scaled_matmul}};
}

}  // namespace onnx_train
