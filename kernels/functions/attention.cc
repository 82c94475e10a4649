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
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Whether the attribute, which the call must have, is not 0.
bool flag(const FunctionCall& call, const std::string& name) {
  if (!call.find(name)) fail("a block attention needs the attribute '", name, "'");
  return call.integer(name) != 0;
}

std::string signature(const std::string& head, const std::string& inputs, size_t mask, const char* outputs,
                      const FunctionCall& call) {
  const bool masked = call.inputs.size() > mask && call.inputs[mask];
  return concat(head, ", scale, fill, keeps_true, guarded, hidden", is_set(call.attrs, "packed") ? ", packed" : "",
                "> (", inputs, masked ? ", mask" : "", ") => (", outputs, ")");
}

// What both directions have in common.
struct AttentionBody : Body {
  int64_t rank;
  bool masked, selects;  // a bool mask selects scores, a float mask is added
  bool keeps_true;       // whether a bool mask keeps scores where it is true; the others become `fill`
  bool guarded;          // whether NaN probabilities and their gradients become 0
  bool packed;
  Term queries, keys, values, factor, scores;

  AttentionBody(const std::string& signature, const FunctionCall& call) : Body(signature, call) {
    rank = given("q").rank(), masked = has("mask"), selects = masked && given("mask").dtype() == DType::kBool;
    keeps_true = flag(call, "keeps_true"), guarded = flag(call, "guarded"), packed = is_set(call.attrs, "packed");
    const char* mask = !masked ? "" : !selects ? "_added" : keeps_true ? "_kept" : "_filled";
    depends_on(concat("rank", rank, mask, guarded ? "_guarded" : "", packed ? "_packed" : ""));
    for (const std::string& name : input_names()) same_type(name, "q");
    find_scores();
  }

  Term in_order(const Term& x, const char* permutation) {
    return op("Transpose", {x}, concat("perm: ints = @", permutation));
  }
  Term turned(const Term& x) const {
    std::vector<int64_t> permutation;
    for (int64_t i = 0; i < rank - 2; ++i) permutation.push_back(i);
    permutation.insert(permutation.end(), {rank - 1, rank - 2});
    return transpose(x, permutation);
  }
  // x where the mask keeps the score, else y.
  Term select(const Term& x, const Term& y) {
    const Term x_like = as(x, input("q")), y_like = as(y, input("q"));
    return keeps_true ? where(input("mask"), x_like, y_like) : where(input("mask"), y_like, x_like);
  }
  // x, or 0 in a guarded call where the probabilities are NaN.
  Term guard(const Term& probabilities, const Term& x) {
    return guarded ? where(op("IsNaN", {probabilities}), as(0, input("q")), x) : x;
  }

 private:
  void find_scores() {
    factor = as(attribute("scale"), input("q"));
    if (packed) {
      const Terms thirds =
          ops("Split", 3, {in_order(input("q"), "perm_q")}, concat("axis = ", rank - 3, ", num_outputs = 3"));
      queries = thirds[0], keys = thirds[1], values = thirds[2];
    } else {
      queries = in_order(input("q"), "perm_q"), keys = in_order(input("k"), "perm_k");
      values = in_order(input("v"), "perm_v");
    }
    scores = matmul(queries, turned(keys)) * factor;
    if (selects) {
      scores = select(scores, attribute("fill"));
    } else if (masked) {
      scores = scores + input("mask");
    }
  }
};

// y = softmax(scale q kᵀ + mask) v; highest = max of each row of scores, sum = Σ exp(score - highest)
FunctionText block_attention(const FunctionCall& call) {
  AttentionBody f(signature("BlockAttention <perm_q, perm_k, perm_v, perm_y", "q, k, v", 3, "y, highest, sum", call),
                  call);
  const Term highest = reduce_max(f.scores, {-1}), exponentials = exp(f.scores - highest);
  Term sum = reduce_sum(exponentials, {-1});
  if (f.guarded) {
    const Term zero = f.as(0, f.input("q"));
    sum = where(highest <= f.attribute("hidden"), zero / zero, sum);
  }
  const Term probabilities = exponentials / sum, y = matmul(f.guard(probabilities, probabilities), f.values);
  return f.text({f.in_order(y, "perm_y"), squeeze(highest, {-1}), squeeze(sum, {-1})});
}

// The probabilities P are recomputed from the row's highest score and sum; Σ dy y over a row equals the row's Σ P dP.
// dP = dy vᵀ,  dS = P (dP - Σ dy y),  dq = scale dS k,  dk = scale dSᵀ q,  dv = Pᵀ dy
FunctionText block_attention_grad(const FunctionCall& call) {
  const bool packed = is_set(call.attrs, "packed");
  AttentionBody f(signature("BlockAttentionGrad <perm_dy, perm_q, perm_k, perm_v, perm_y, perm_dq, perm_dk, perm_dv",
                            "dy, q, k, v, y, highest, sum", 7, packed ? "dq" : "dq, dk, dv", call),
                  call);
  const Term exponentials = exp(f.scores - unsqueeze(f.input("highest"), {-1}));
  const Term probabilities = exponentials / unsqueeze(f.input("sum"), {-1}), p = f.guard(probabilities, probabilities);
  const Term dy = f.in_order(f.input("dy"), "perm_dy"), y = f.in_order(f.input("y"), "perm_y");
  const Term dp = f.guard(probabilities, matmul(dy, f.turned(f.values)));
  Term dscores = p * (dp - reduce_sum(dy * y, {-1}));
  if (f.selects) dscores = f.select(dscores, 0);
  const Term dproducts = dscores * f.factor, dq = matmul(dproducts, f.keys);
  const Term dk = matmul(f.turned(dproducts), f.queries), dv = matmul(f.turned(p), dy);
  if (packed) return f.text({f.in_order(concat({dq, dk, dv}, f.rank - 3), "perm_dq")});
  return f.text({f.in_order(dq, "perm_dq"), f.in_order(dk, "perm_dk"), f.in_order(dv, "perm_dv")});
}

}  // namespace

std::vector<FunctionRow> block_attention_functions() {
  return {{"BlockAttention", block_attention}, {"BlockAttentionGrad", block_attention_grad}};
}

}  // namespace onnx_train
