// Operands of 8-bit floats and their products (quantize_products.cc).
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/name_list.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// q = x / scale, rounded to the nearest 8-bit float of type `to`; what is too large becomes the largest number. The
// attribute `writes` names the outputs, in this order: "rows", q stored as x is; "columns", q transposed as a matrix of
// x's last axis; "magnitude", the largest magnitude of x; "sums", the sums of x's columns or, if `sums_of` is "stored",
// those of q times scale.
//
// With `activation`, what is quantized is f(x), and with `activation_gradient` f'(operand) x, rounded to 16 bits like
// x.
FunctionText text_of_quantize(const FunctionCall& call) {
  const std::string writes = call.text("writes"), activation = call.text("activation"),
                    gradient = call.text("activation_gradient"), sums_of = call.text("sums_of");
  const std::vector<std::string> outputs = split_names(writes);
  const auto writes_output = [&](const char* output) { return place_in(outputs, output) >= 0; };
  const DType dtype = call.inputs[0].dtype();
  const bool is_scalar = call.inputs[0].rank() == 0;
  std::string attributes = "to, writes", overload = concat(name(dtype), is_scalar ? "_scalar" : "");
  for (const std::string& output : outputs) overload += "_" + output;
  for (const char* attribute : {"activation", "activation_gradient", "sums_of"}) {
    const std::string value = call.text(attribute);
    if (value.empty()) continue;
    attributes += concat(", ", attribute);
    overload += concat("_", attribute, "_", value);
  }
  Body f(concat("Quantize <", attributes, "> (x, scale", gradient.empty() ? "" : ", operand", ") => (", writes, ")"),
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
  if (writes_output("rows")) f.output("rows", rows);
  if (writes_output("columns")) f.output("columns", transpose(matrix(rows), {1, 0}));
  if (writes_output("magnitude")) f.output("magnitude", reduce_max(abs(x), {}, /*keepdims=*/false));
  if (writes_output("sums")) {
    const Term summed = sums_of == "stored" ? f.op("DequantizeLinear", {rows, f.input("scale")}) : x;
    f.output("sums", reduce_sum(matrix(summed), {0}, /*keepdims=*/false));
  }
  return f.text();
}

// y = (scale_a a) (scale_b b)ᵀ, rounded to type `to` after the steps `bias` and `residual`. a is [.., K], b is [N, K].
FunctionText text_of_scaled_matmul(const FunctionCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  const bool adds_residual = has_step(epilogue, EpilogueStep::kResidual);
  const bool adds = adds_residual || has_step(epilogue, EpilogueStep::kBias);
  Body f(concat("ScaledMatMul <to", epilogue.empty() ? "" : ", epilogue", "> (a, b, scale_a, scale_b",
                adds ? ", bias" : "", adds_residual ? ", residual" : "", ") => (y)"),
         call);
  const Term left = f.op("DequantizeLinear", {f.input("a"), f.input("scale_a")});
  const Term right = f.op("DequantizeLinear", {f.input("b"), f.input("scale_b")});
  Term sum = matmul(left, transpose(right, {1, 0}));
  std::string overload;
  for (const EpilogueStep step : epilogue) {
    const std::string term = row_of(step).reads;
    const auto place = static_cast<size_t>(place_of_input(kDomain, "ScaledMatMul", term));
    overload += concat(overload.empty() ? "" : "_", term, "_", name(call.inputs[place].dtype()));
    sum = sum + cast_like(f.input(term), sum);
  }
  f.depends_on(overload);
  return f.text({f.op("Cast", {sum}, "to: int = @to")});
}

}  // namespace

std::vector<FunctionRow> float8_functions() {
  return {{"Quantize", text_of_quantize}, {"ScaledMatMul", text_of_scaled_matmul}};
}

}  // namespace onnx_train
