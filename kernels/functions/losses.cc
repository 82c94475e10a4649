// The product that makes logits, their cross entropy, and all gradients of both in one call, for kernels that never
// hold all logits. The pass linear_cross_entropy emits it (kernels/lowering/fusion/linear_cross_entropy.cc).
//
// The gradients of the loss are multiples of `dloss`, which is known before the loss: a kernel makes them from the
// logits of some positions while it has these, and needs no product twice (Liger kernels: Hsu et al. 2024).
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/cross_entropy.h"

namespace onnx_train {
namespace {

std::string signature(const FunctionCall& call) {
  static const char* const kMore[] = {"bias", "weight", "dloss"};
  std::string inputs = "h, w, labels";
  for (size_t i = 3; i < call.inputs.size(); ++i) inputs += concat(", ", kMore[i - 3]);
  const auto given = [&](size_t i) { return call.inputs.size() > i && call.inputs[i]; };
  return concat(
      "LinearCrossEntropy <axis, ignore_index, label_smoothing, reduction, transposed, scale, cap, rounding, narrow, "
      "rows> (",
      inputs, ") => (loss, correct, log_p, rank", given(5) ? ", dh, dw" : "", given(5) && given(3) ? ", dbias" : "",
      ")");
}

DType type_of(const FunctionCall& call, const char* attribute) { return static_cast<DType>(call.integer(attribute)); }

// logits = cap tanh(scale (h w + bias)), or scale (h w + bias) where cap is 0; w has a row per class if `transposed`.
// loss as of SoftmaxCrossEntropy; correct: the label is the first of the largest logits, and is not ignored; log_p and
// rank as of LabelScores.
// dlogits = SoftmaxCrossEntropyGrad of dloss, dproduct = dlogits cap (1 - tanh² (scale (h w + bias))) scale,
// dh = dproduct wᵀ,  dw = hᵀ dproduct,  dbias = Σ dproduct over the positions
//
// h, w and the bias may have 16 bits and the rest be float32. `rounding`: the 16-bit type to which h w + bias, the
// logits and dproduct are rounded, or 0; `narrow`: the type of dh if it has 16 bits, or 0; `rows`: how many positions a
// chunk of a kernel has, or 0, on which no result depends but for the order of sums.
FunctionText linear_cross_entropy(const FunctionCall& call) {
  Body f(signature(call), call);
  const bool transposed = call.integer("transposed") != 0;
  const bool capped = cross_entropy_attribute<Tensor>(call, "cap").at(0) != 0;
  const bool scaled = cross_entropy_attribute<Tensor>(call, "scale").at(0) != 1;
  const DType rounding = type_of(call, "rounding"), narrow = type_of(call, "narrow");
  const DType stored = call.inputs[0].dtype();
  const bool widens = is_16_bit_float(stored),
             widens_bias = f.has("bias") && call.inputs[3].dtype() == stored && widens;
  f.depends_on(concat(transposed ? "transposed" : "plain", widens ? concat("_", name(stored)) : "",
                      widens_bias ? "_narrow_bias" : "", scaled ? "_scaled" : "", capped ? "_capped" : "",
                      rounding == DType::kUndefined ? "" : concat("_in_", name(rounding)),
                      narrow == DType::kUndefined ? "" : "_narrow", f.has("bias") ? "_bias" : "",
                      f.has("dloss") ? "_trains" : ""));
  const auto wide = [&](const Term& x) { return widens ? cast(x, DType::kFloat) : x; };
  const auto rounded = [&](const Term& x) {
    return rounding == DType::kUndefined ? x : cast(cast(x, rounding), DType::kFloat);
  };
  f.same_type("w", "h");
  const Term h = wide(f.input("h")), w = wide(f.input("w"));
  Term logits = matmul(h, transposed ? transpose(w, {1, 0}) : w);
  if (f.has("bias")) logits = logits + (widens_bias ? wide(f.input("bias")) : f.input("bias"));
  logits = rounded(logits);
  if (scaled) logits = logits * f.attribute("scale");
  Term t;
  if (capped) {
    t = tanh(logits);
    logits = t * f.attribute("cap");
  }
  if (scaled || capped) logits = rounded(logits);
  const CrossEntropyBody e(&f, logits);
  const Term highest = f.op("ArgMax", {logits}, "axis = -1, keepdims = 0", DType::kInt64);
  const Term hit = equal(highest, cast(f.input("labels"), DType::kInt64));
  Terms results = {e.loss(), logical_and(hit, logical_not(e.ignored))};
  for (const Term& score : label_scores(f, logits, e.label_column, e.ignored, e.axis, e.rank)) results.push_back(score);
  if (!f.has("dloss")) return f.text(results);

  Term d = e.gradient(e.log_sum_exp(), f.input("dloss"));
  if (capped) d = d * f.attribute("cap") * (1 - t * t);
  if (scaled) d = d * f.attribute("scale");
  d = rounded(d);
  const Term dh = matmul(d, transposed ? w : transpose(w, {1, 0}));
  const auto rows = [&](const Term& x) { return reshape(x, concat({Term{-1}, shape_from(x, -1)}, 0)); };
  const Term d_rows = rows(d), h_rows = rows(h);
  const Term dw = transposed ? matmul(transpose(d_rows, {1, 0}), h_rows) : matmul(transpose(h_rows, {1, 0}), d_rows);
  for (const Term& gradient : {narrow == DType::kUndefined ? dh : cast(dh, narrow), dw}) results.push_back(gradient);
  if (f.has("bias")) results.push_back(reduce_sum(d_rows, {0}, /*keepdims=*/false));
  return f.text(results);
}

}  // namespace

std::vector<FunctionRow> linear_loss_functions() { return {{"LinearCrossEntropy", linear_cross_entropy}}; }

}  // namespace onnx_train
