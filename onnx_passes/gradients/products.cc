// Gradients of products of matrices. A transposed operand is a flag of Gemm wherever the operands are matrices.
#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/einsum.h"

namespace onnx_train {
namespace {

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

// Sums the batches of `gradient`, one for each batch of y, to those of x. The matrices have x's size anyway, even where
// their types do not tell.
Var sum_batches(Var gradient, Var x, Var y) {
  bool same = x.rank() == y.rank();
  for (size_t i = 0; same && i + 2 < x.type().dims->size(); ++i) same = (*x.type().dims)[i].same((*y.type().dims)[i]);
  return same ? gradient : sum_to_shape_of(gradient, x);
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
    gradients = {g.needs(0) ? sum_batches(matmul(dy, transpose_last(b)), a, dy) : Var(),
                 g.needs(1) ? sum_batches(matmul(transpose_last(a), dy), b, dy) : Var()};
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

// Whether an operand with these indices has `size` elements along `index`, not one that is repeated.
bool spans(Var operand, const std::string& indices, char index, const Dim& size) {
  const size_t axis = indices.find(index);
  if (axis == std::string::npos) return false;
  return size == Dim(1) || (*operand.type().dims)[axis] != Dim(1);
}

// A letter that the equation does not have.
char unused_letter(const std::string& equation) {
  for (const char c : std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")) {
    if (equation.find(c) == std::string::npos) return c;
  }
  fail("an equation has no letter left for a diagonal");
}

// dx_i = einsum(dy, the other inputs) over x_i's indices. An index along which none of them spans x_i was summed on its
// own: a vector of ones spreads the gradient over it. Where x_i's diagonal was taken, over an index that it repeats,
// the repeated one has a letter of its own here, and an identity matrix of both.
Var einsum_input_gradient(const Grad& g, const Einsum& einsum, size_t i) {
  const Var x = g.x(static_cast<int>(i));
  std::vector<Var> operands = {g.dy()};
  Einsum backward{{einsum.output}, einsum.inputs[i]};
  for (size_t j = 0; j < einsum.inputs.size(); ++j) {
    if (j == i) continue;
    operands.push_back(g.x(static_cast<int>(j)));
    backward.inputs.push_back(einsum.inputs[j]);
  }
  for (size_t axis = 1; axis < backward.output.size(); ++axis) {
    const char index = backward.output[axis];
    if (backward.output.find(index) == axis) continue;
    const char own = unused_letter(einsum.equation() + backward.equation());
    backward.output[axis] = own;
    const Var size = dim(x, static_cast<int64_t>(axis));
    operands.push_back(g.b().op("EyeLike", {full(concat({size, size}, 0), x.dtype(), 0)}));
    backward.inputs.push_back({index, own});
  }
  std::vector<Var> ones;
  std::vector<std::string> spread;
  for (size_t axis = 0; axis < backward.output.size(); ++axis) {
    const char index = backward.output[axis];
    bool found = false;
    for (size_t j = 0; j < operands.size(); ++j) {
      found = found || spans(operands[j], backward.inputs[j], index, (*x.type().dims)[axis]);
    }
    if (found) continue;
    ones.push_back(full(dim(x, static_cast<int64_t>(axis)), x.dtype(), 1));
    spread.emplace_back(1, index);
  }
  // In front: shape inference gives an index the size that it has where it occurs first.
  operands.insert(operands.begin(), ones.begin(), ones.end());
  backward.inputs.insert(backward.inputs.begin(), spread.begin(), spread.end());
  return sum_to_shape_of(g.b().op("Einsum", operands, {{"equation", backward.equation()}}), x);
}

// y = einsum(x0, x1, ...)    each input's gradient is an Einsum, too
Gradients einsum_gradient(Grad& g) {
  const Einsum einsum = parse_einsum(g.node());
  Gradients gradients;
  for (size_t i = 0; i < einsum.inputs.size(); ++i) {
    gradients.push_back(g.needs(static_cast<int>(i)) ? einsum_input_gradient(g, einsum, i) : Var());
  }
  return gradients;
}

// y = det(x)    dx = dy cof(x)
Gradients determinant_gradient(Grad& g) { return g.to(call(g.b(), "DetGrad", {g.dy(), g.x()})); }

// y = x⁻¹    dx = -yᵀ dy yᵀ
Gradients inverse_gradient(Grad& g) {
  const Var turned = transpose_last(g.y());
  return g.to(-matmul(matmul(turned, g.dy()), turned));
}

std::string unknown_matrix(const Node& node) {
  const Value* x = node.input(0);
  if (x->has_rank() && x->rank() >= 2 && x->type().dims->back().known()) return "";
  return "the number of its matrices' rows is not known; give the model's inputs fixed sizes";
}

}  // namespace

std::vector<GradientRule> product_rules() {
  return {
      {"Det", determinant_gradient, Trait::kNone, "", unknown_matrix},
      {"Inverse", inverse_gradient, Trait::kNone, kDomain},
      {"MatMul", matmul_gradient, Trait::kNone, "", unknown_rank},
      {"Gemm", gemm_gradient},
      {"Einsum", einsum_gradient, Trait::kNone, "", unknown_rank},
  };
}

}  // namespace onnx_train
