// Gradients of products of matrices. A transposed operand is a flag of Gemm wherever the operands are matrices.
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

std::string unknown_rank(const Node& node) {
  for (const Value* input : node.inputs()) {
    if (input && !input->has_rank()) return concat("the rank of '", input->name(), "' is not known; give it a shape");
  }
  return "";
}

// The rows of all batches as one matrix.
Var rows_of(Var x) { return x.rank() == 2 ? x : flatten_to_2d(x, x.rank() - 1); }

// y[..., n] = a[..., k] b[k, n]: the rows of all batches form one matrix, so that db is one product.
//     da = dy bᵀ,  db = aᵀ dy
Gradients matmul_by_matrix(const Grad& g, Var a, Var b, Var dy) {
  const Var rows = rows_of(dy);
  const auto da = [&] {
    const Var gradient = gemm(rows, b, false, true);
    return a.rank() == 2 ? gradient : reshape(gradient, shape(a));
  };
  const auto db = [&] { return gemm(rows_of(a), rows, true, false); };
  return {g.needs(0) ? da() : Var(), g.needs(1) ? db() : Var()};
}

// y = a b    da = dy bᵀ,  db = aᵀ dy, summed over broadcast batches; a vector is a matrix of one row or column
Gradients matmul_gradient(Grad& g) {
  Var a = g.x(0), b = g.x(1), dy = g.dy();
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (column) b = unsqueeze(b, {1}), dy = unsqueeze(dy, {-1});
  if (row) a = unsqueeze(a, {0}), dy = unsqueeze(dy, {-2});
  Gradients gradients;
  if (b.rank() == 2) {
    gradients = matmul_by_matrix(g, a, b, dy);
  } else {
    gradients = {g.needs(0) ? sum_to_shape_of(matmul(dy, transpose_last(b)), a) : Var(),
                 g.needs(1) ? sum_to_shape_of(matmul(transpose_last(a), dy), b) : Var()};
  }
  if (row && gradients[0]) gradients[0] = squeeze(gradients[0], {0});
  if (column && gradients[1]) gradients[1] = squeeze(gradients[1], {1});
  return gradients;
}

Var scaled(Var x, double factor) { return factor == 1 ? x : x * factor; }

// y = α a' b' + β c, where a' is a or aᵀ
//     da' = α dy b'ᵀ,  db' = α a'ᵀ dy,  dc = β dy summed over broadcast axes
Gradients gemm_gradient(Grad& g) {
  const Node& node = g.node();
  const bool trans_a = node.attr("transA", 0) != 0, trans_b = node.attr("transB", 0) != 0;
  const float alpha = node.attr("alpha", 1.0f);
  const auto product = [&](Var a, Var b, bool ta, bool tb) {
    Attrs attrs = {{"transA", ta ? 1 : 0}, {"transB", tb ? 1 : 0}};
    if (alpha != 1) attrs.emplace_back("alpha", alpha);
    return g.b().op("Gemm", {a, b}, attrs);
  };
  const Var a = g.x(0), b = g.x(1), dy = g.dy();
  const auto da = [&] { return trans_a ? product(b, dy, trans_b, true) : product(dy, b, false, !trans_b); };
  const auto db = [&] { return trans_b ? product(dy, a, true, trans_a) : product(a, dy, !trans_a, false); };
  const auto dc = [&] { return scaled(sum_to_shape_of(dy, g.x(2)), node.attr("beta", 1.0f)); };
  return {g.needs(0) ? da() : Var(), g.needs(1) ? db() : Var(), g.needs(2) ? dc() : Var()};
}

}  // namespace

std::vector<GradientRule> product_rules() {
  return {
      {"MatMul", matmul_gradient, Trait::kNone, "", unknown_rank},
      {"Gemm", gemm_gradient},
  };
}

}  // namespace onnx_train
