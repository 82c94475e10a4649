// Attention that never stores all of its scores at once, forward and backward. The pass block_attention replaces
// products, mask, softmax and product by it. The backward pass needs only the highest score of each query and the sum
// of the exponentials (Milakov & Gimelshein 2018; Dao et al. 2022).
//
// Tensors may have any axis order in memory: `perm_q` permutes q's axes in memory to [batch.., queries, width],
// likewise for all inputs; `perm_y` of BlockAttention permutes [batch.., queries, width of v] to y's axes in memory,
// likewise for all outputs.
//
// With `packed`, input q contains q, k and v as thirds along the axis of heads (the last of batch..), and k and v are
// absent; likewise, the only output of BlockAttentionGrad contains their gradients.
//
// `guarded` sets NaN probabilities to 0: those of rows that the mask hides entirely, or whose highest score is at most
// `hidden`, for finite masks. The `sum` of such a row is NaN. Other rows do not change.
//
// Every kernel writes `highest` and `sum` as defined below, because another one may run the backward pass, which reads
// only exp(score - highest) / sum. A kernel that multiplies 16-bit operands may round probabilities and the gradients
// of scores to that type before multiplying, as tensor cores require.
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

int64_t flag(const Attrs& attrs, const std::string& name) {
  for (const Attr& a : attrs) {
    if (a.name == name && std::holds_alternative<int64_t>(a.value)) return std::get<int64_t>(a.value);
  }
  fail("a block attention needs the attribute '", name, "'");
}

// The properties of a call that select its body.
struct Variant {
  int64_t rank;
  bool masked, selects;  // a bool mask selects scores, a float mask is added
  bool keeps_true;       // whether a bool mask keeps scores where it is true; the others become `fill`
  bool guarded;          // whether NaN probabilities and their gradients become 0
  bool packed;

  std::string overload() const {
    const char* mask = !masked ? "" : !selects ? "_added" : keeps_true ? "_kept" : "_filled";
    return concat("rank", rank, mask, guarded ? "_guarded" : "", packed ? "_packed" : "");
  }
  std::string transpose(const std::string& x) const {
    std::string permutation;
    for (int64_t i = 0; i < rank - 2; ++i) permutation += concat(i, ", ");
    return concat("Transpose <perm = [", permutation, rank - 1, ", ", rank - 2, "]> (", x, ")");
  }
  // Returns x where the mask keeps the score, else y.
  std::string select(const std::string& x, const std::string& y) const {
    return concat("Where (mask, ", keeps_true ? x : y, ", ", keeps_true ? y : x, ")");
  }
};

Variant variant_of(const FunctionCall& call, size_t mask) {
  const bool masked = call.inputs.size() > mask && call.inputs[mask];
  return {call.inputs.at(0).rank(),
          masked,
          masked && call.inputs[mask].dtype() == DType::kBool,
          flag(call.attrs, "keeps_true") != 0,
          flag(call.attrs, "guarded") != 0,
          is_set(call.attrs, "packed")};
}

void write_number(BodyText& body, const std::string& name, const std::string& value) {
  body.let(name + "_float", "Constant <value_float: float = " + value + "> ()");
  body.let(name, concat("CastLike (", name, "_float, q)"));
}

// Writes the scores from q, k and the mask.
void write_scores(BodyText& body, const Variant& v) {
  body.line("last = Constant <value_ints = [-1]> ()");
  write_number(body, "factor", "@scale");
  write_number(body, "zero", "0.0");
  if (v.packed) {
    body.line("all_heads = Transpose <perm: ints = @perm_q> (q)");
    body.line("queries, keys, values = Split <axis = ", v.rank - 3, ", num_outputs = 3> (all_heads)");
  } else {
    body.line("queries = Transpose <perm: ints = @perm_q> (q)");
    body.line("keys = Transpose <perm: ints = @perm_k> (k)");
    body.line("values = Transpose <perm: ints = @perm_v> (v)");
  }
  body.line("key_columns = ", v.transpose("keys"));
  body.line("products = MatMul (queries, key_columns)");
  body.line(v.masked ? "scaled" : "scores", " = Mul (products, factor)");
  if (v.selects) {
    write_number(body, "filling", "@fill");
    body.line("scores = ", v.select("scaled", "filling"));
  } else if (v.masked) {
    body.line("scores = Add (scaled, mask)");
  }
}

// Returns the name of the probabilities; in a guarded call, 0 replaces NaN.
std::string write_guard(BodyText& body, const Variant& v) {
  if (!v.guarded) return "probabilities";
  body.line("undefined = IsNaN (probabilities)");
  body.line("guarded = Where (undefined, zero, probabilities)");
  return "guarded";
}

std::string signature(const std::string& head, const std::string& inputs, const Variant& v, const char* outputs) {
  return concat(head, ", scale, fill, keeps_true, guarded, hidden", v.packed ? ", packed" : "", "> (", inputs,
                v.masked ? ", mask" : "", ") => (", outputs, ")\n{\n");
}

// y = softmax(scale q kᵀ + mask) v; highest = max of each row of scores, sum = Σ exp(score - highest)
FunctionText block_attention(const FunctionCall& call) {
  const Variant v = variant_of(call, 3);
  BodyText body;
  write_scores(body, v);
  body.line("highest_column = ReduceMax <keepdims = 1> (scores, last)");
  body.line("shifted = Sub (scores, highest_column)");
  body.line("exponentials = Exp (shifted)");
  body.line(v.guarded ? "total" : "sum_column", " = ReduceSum <keepdims = 1> (exponentials, last)");
  if (v.guarded) {
    write_number(body, "highest_hidden", "@hidden");
    body.line("is_hidden = LessOrEqual (highest_column, highest_hidden)");
    body.line("none = Div (zero, zero)");
    body.line("sum_column = Where (is_hidden, none, total)");
  }
  body.line("probabilities = Div (exponentials, sum_column)");
  body.line("mixed = MatMul (", write_guard(body, v), ", values)");
  body.line("y = Transpose <perm: ints = @perm_y> (mixed)");
  body.line("highest = Squeeze (highest_column, last)");
  body.line("sum = Squeeze (sum_column, last)");
  const std::string head = "BlockAttention <perm_q, perm_k, perm_v, perm_y";
  return {concat(signature(head, "q, k, v", v, "y, highest, sum"), body.text(), "}"), v.overload()};
}

// The probabilities P are recomputed from the row's highest score and sum; Σ dy y over a row equals the row's Σ P dP.
// dP = dy vᵀ,  dS = P (dP - Σ dy y),  dq = scale dS k,  dk = scale dSᵀ q,  dv = Pᵀ dy
FunctionText block_attention_grad(const FunctionCall& call) {
  const Variant v = variant_of(call, 7);
  BodyText body;
  write_scores(body, v);
  body.line("highest_column = Unsqueeze (highest, last)");
  body.line("shifted = Sub (scores, highest_column)");
  body.line("exponentials = Exp (shifted)");
  body.line("sum_column = Unsqueeze (sum, last)");
  body.line("probabilities = Div (exponentials, sum_column)");
  const std::string p = write_guard(body, v);
  body.line("gradients = Transpose <perm: ints = @perm_dy> (dy)");
  body.line("outputs = Transpose <perm: ints = @perm_y> (y)");
  body.line("weighted = Mul (gradients, outputs)");
  body.line("mean = ReduceSum <keepdims = 1> (weighted, last)");
  body.line("value_columns = ", v.transpose("values"));
  body.line("dp = MatMul (gradients, value_columns)");
  if (v.guarded) body.line("dp_guarded = Where (undefined, zero, dp)");
  body.line("centered = Sub (", v.guarded ? "dp_guarded" : "dp", ", mean)");
  body.line("dscores = Mul (", p, ", centered)");
  if (v.selects) body.line("dselected = ", v.select("dscores", "zero"));
  body.line("dproducts = Mul (", v.selects ? "dselected" : "dscores", ", factor)");
  body.line("dqueries = MatMul (dproducts, keys)");
  body.line("dproduct_columns = ", v.transpose("dproducts"));
  body.line("dkeys = MatMul (dproduct_columns, queries)");
  body.line("probability_columns = ", v.transpose(p));
  body.line("dvalues = MatMul (probability_columns, gradients)");
  if (v.packed) {
    body.line("dheads = Concat <axis = ", v.rank - 3, "> (dqueries, dkeys, dvalues)");
    body.line("dq = Transpose <perm: ints = @perm_dq> (dheads)");
  } else {
    body.line("dq = Transpose <perm: ints = @perm_dq> (dqueries)");
    body.line("dk = Transpose <perm: ints = @perm_dk> (dkeys)");
    body.line("dv = Transpose <perm: ints = @perm_dv> (dvalues)");
  }
  const std::string head = "BlockAttentionGrad <perm_dy, perm_q, perm_k, perm_v, perm_y, perm_dq, perm_dk, perm_dv";
  return {concat(signature(head, "dy, q, k, v, y, highest, sum", v, v.packed ? "dq" : "dq, dk, dv"), body.text(), "}"),
          v.overload()};
}

}  // namespace

std::vector<FunctionRow> block_attention_functions() {
  return {{"BlockAttention", block_attention}, {"BlockAttentionGrad", block_attention_grad}};
}

}  // namespace onnx_train
