// Operands of 8-bit floats and their products (quantize_products.cc).
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// q = x / scale, rounded to the nearest 8-bit float of type `to`; what is too large becomes the largest number. The
// attribute `stored` says how q is stored: "rows", as x is, "columns", transposed as a matrix of x's last axis, or
// "both". Further outputs are the largest magnitude of x, and the sums of its columns or, if `sums_of` is "stored",
// those of q times scale.
//
// With `activation`, what is quantized is f(x), and with `activation_gradient` f'(operand) x, rounded to 16 bits like
// x.
FunctionText text_of_quantize(const FunctionCall& call) {
  const std::string stored = call.text("stored"), activation = call.text("activation"),
                    gradient = call.text("activation_gradient"), sums_of = call.text("sums_of");
  const DType dtype = call.inputs[0].dtype();
  const bool is_scalar = call.inputs[0].rank() == 0;
  std::string attributes = "to, stored", overload = concat(stored, "_", name(dtype), is_scalar ? "_scalar" : "");
  for (const char* attribute : {"activation", "activation_gradient", "sums_of"}) {
    const std::string value = call.text(attribute);
    if (value.empty()) continue;
    attributes += concat(", ", attribute);
    overload += concat("_", attribute, "_", value);
  }
  Body f(concat("Quantize <", attributes, "> (x, scale", gradient.empty() ? "" : ", operand", ") => (",
                stored == "columns" ? "" : "rows, ", stored == "rows" ? "" : "columns, ", "magnitude",
                sums_of.empty() ? "" : ", sums", ")"),
         call);
  f.depends_on(overload);

  Term x = cast(f.input("x"), DType::kFloat);
  const auto narrowed = [&](const Term& result) { return cast(cast(result, dtype), DType::kFloat); };
  if (activation == "GeluTanh") {
    x = narrowed(f.op("Gelu", {x}, "approximate = \"tanh\""));
  } else if (!activation.empty()) {
    x = narrowed(f.op(activation, {x}));
  } else if (!gradient.empty()) {
    x = narrowed(f.apply(gradient + "Grad", {x, cast(f.input("operand"), DType::kFloat)}));
  }
  const auto matrix = [&](const Term& of) { return f.op("Flatten", {of}, is_scalar ? "axis = 0" : "axis = -1"); };
  const Term rows = f.op("QuantizeLinear", {x, f.input("scale")}, "output_dtype: int = @to");
  if (stored != "columns") f.output("rows", rows);
  if (stored != "rows") f.output("columns", transpose(matrix(rows), {1, 0}));
  f.output("magnitude", reduce_max(abs(x), {}, /*keepdims=*/false));
  if (!sums_of.empty()) {
    const Term summed = sums_of == "stored" ? f.op("DequantizeLinear", {rows, f.input("scale")}) : x;
    f.output("sums", reduce_sum(matrix(summed), {0}, /*keepdims=*/false));
  }
  return f.text();
}

// y = (scale_a a) (scale_b b)ᵀ, and added to it, before y is rounded to type `to`: input 4, a bias [N] or a matrix like
// y. a is [.., K], b is [N, K].
FunctionText text_of_scaled_matmul(const FunctionCall& call) {
  const bool adds = call.inputs.size() > 4;
  Body f(concat("ScaledMatMul <to> (a, b, scale_a, scale_b", adds ? ", c" : "", ") => (y)"), call);
  const Term left = f.op("DequantizeLinear", {f.input("a"), f.input("scale_a")});
  const Term right = f.op("DequantizeLinear", {f.input("b"), f.input("scale_b")});
  Term sum = matmul(left, transpose(right, {1, 0}));
  if (adds) {
    f.depends_on(concat("plus_", name(call.inputs[4].dtype())));
    sum = sum + cast_like(f.input("c"), sum);
  }
  return f.text({f.op("Cast", {sum}, "to: int = @to")});
}

}  // namespace

std::vector<FunctionRow> float8_functions() {
  return {{"Quantize", text_of_quantize}, {"ScaledMatMul", text_of_scaled_matmul}};
}

}  // namespace onnx_train
