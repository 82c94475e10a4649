// Operands of 8-bit floats and their products (quantize_products.cc).
#include "kernels/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/name_list.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

std::string text_attribute(const FunctionCall& call, const std::string& name) {
  for (const Attr& attr : call.attrs) {
    if (attr.name == name) return std::get<std::string>(attr.value);
  }
  return "";
}

// q = x / scale, rounded to the nearest 8-bit float of type `to`; what is too large becomes the largest number. The
// attribute `writes` names the outputs, in this order: "rows", q stored as x is; "columns", q transposed as a matrix of
// x's last axis; "magnitude", the largest magnitude of x; "sums", the sums of x's columns or, if `sums_of` is "stored",
// those of q times scale.
//
// With `activation`, what is quantized is f(x), and with `activation_gradient` f'(operand) x, rounded to 16 bits like
// x.
FunctionText text_of_quantize(const FunctionCall& call) {
  const std::string writes = text_attribute(call, "writes"), activation = text_attribute(call, "activation"),
                    gradient = text_attribute(call, "activation_gradient"), sums_of = text_attribute(call, "sums_of");
  const DType dtype = call.inputs[0].dtype();
  const auto cast = [](const char* to, const char* from, DType type) {
    return concat("  ", to, " = Cast <to = ", static_cast<int>(type), "> (", from, ")\n");
  };
  const bool is_scalar = call.inputs[0].rank() == 0;
  const int last = is_scalar ? 0 : -1;  // axis
  std::string lines = cast("wide", "x", DType::kFloat), inner;
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
  const std::vector<std::string> outputs = split_names(writes);
  const auto has_output = [&](const char* name) { return place_in(outputs, name) >= 0; };
  if (has_output("columns"))
    lines += concat("  matrix = Flatten <axis = ", last, "> (rows)\n  columns = Transpose <perm = [1, 0]> (matrix)\n");
  if (has_output("magnitude"))
    lines += concat("  magnitudes = Abs (", x, ")\n  magnitude = ReduceMax <keepdims = 0> (magnitudes)\n");
  if (has_output("sums")) {
    if (sums_of == "stored") lines += "  summed = DequantizeLinear (rows, scale)\n";
    lines += concat("  summands = Flatten <axis = ", last, "> (", sums_of == "stored" ? "summed" : x,
                    ")\n  axis = Constant <value_ints = [0]> ()\n  sums = ReduceSum <keepdims = 0> (summands, axis)\n");
  }
  std::string attributes = "to, writes", overload = concat(name(dtype), is_scalar ? "_scalar" : "");
  for (const std::string& output : outputs) overload += "_" + output;
  for (const char* attribute : {"activation", "activation_gradient", "sums_of"}) {
    const std::string value = text_attribute(call, attribute);
    if (value.empty()) continue;
    attributes += concat(", ", attribute);
    overload += concat("_", attribute, "_", value);
  }
  return {concat("Quantize <", attributes, "> (x, scale", gradient.empty() ? "" : ", operand", ") => (", writes,
                 ")\n{\n", lines, "}"),
          overload, inner};
}

// y = (scale_a a) (scale_b b)ᵀ, rounded to type `to` after the steps `bias` and `residual`. a is [.., K], b is [N, K].
FunctionText text_of_scaled_matmul(const FunctionCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  std::string inputs = "a, b, scale_a, scale_b", sum = "product", lines, overload;
  for (const EpilogueStep step : epilogue) {
    const std::string term = row_of(step).reads;
    lines += concat("  wide_", term, " = CastLike (", term, ", product)\n  with_", term, " = Add (", sum, ", wide_",
                    term, ")\n");
    sum = "with_" + term;
    const size_t place = static_cast<size_t>(place_of_input(kDomain, "ScaledMatMul", term));
    overload += concat(overload.empty() ? "" : "_", term, "_", name(call.inputs[place].dtype()));
  }
  if (has_step(epilogue, EpilogueStep::kResidual)) {
    inputs += ", bias, residual";
  } else if (has_step(epilogue, EpilogueStep::kBias)) {
    inputs += ", bias";
  }
  return {concat("ScaledMatMul <to", epilogue.empty() ? "" : ", epilogue", "> (", inputs, R"() => (y)
{
  left = DequantizeLinear (a, scale_a)
  right = DequantizeLinear (b, scale_b)
  columns = Transpose <perm = [1, 0]> (right)
  product = MatMul (left, columns)
)",
                 lines, "  y = Cast <to: int = @to> (", sum, ")\n}"),
          overload};
}

}  // namespace

std::vector<FunctionRow> float8_functions() {
  return {{"Quantize", text_of_quantize}, {"ScaledMatMul", text_of_scaled_matmul}};
}

}  // namespace onnx_train
