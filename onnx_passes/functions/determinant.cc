// The gradient of Det, dx = dy cof(x), where a cofactor is, up to its sign, the determinant of x without its row and
// column; so it is right for singular matrices, too. And the inverse, which has the same cofactors. The bodies depend
// on the number of rows.
#include <numeric>
#include <utility>

#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

int64_t matrix_rows(const Var& x) { return (*x.type().dims).back().value(); }

// The cofactors of the matrices of `x`, of n rows each, times the matrix's element of `scale`, in the shape of x.
Term scaled_cofactors(const Term& x, int64_t n, const Term& scale) {
  Body& f = *x.body();
  std::vector<int64_t> others;
  std::vector<double> signs;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      signs.push_back((i + j) % 2 == 0 ? 1 : -1);
      if (j != i) others.push_back(j);
    }
  }
  const Term matrices = reshape(x, {-1, n, n});
  const Term signs_of_x = cast_like(reshape(f.constant(DType::kFloat, signs), {n, n}), x);
  Term cofactors = reshape(scale, {-1, 1, 1}) * signs_of_x;
  if (n > 1) {  // a matrix without elements has the determinant 1
    const Term rest = f.op("Reshape", {others, {n, n - 1}});
    const Term minors = transpose(gather(gather(matrices, rest, 1), rest, 3), {0, 1, 3, 2, 4});
    cofactors = cofactors * f.op("Det", {minors});
  }
  return f.op("Reshape", {cofactors, shape(x)});
}

FunctionText det_grad(const FunctionCall& call) {
  Body f("DetGrad (dy, x) => (dx)", call);
  const int64_t n = matrix_rows(f.given("x"));
  f.depends_on(concat("rows_", n));
  return f.text({scaled_cofactors(f.input("x"), n, f.input("dy"))});
}

// y = cof(x)ᵀ / det(x)
FunctionText inverse(const FunctionCall& call) {
  Body f("Inverse (x) => (y)", call);
  const int64_t n = matrix_rows(f.given("x")), rank = f.given("x").type().rank();
  f.depends_on(concat("rank_", rank, "_rows_", n));
  std::vector<int64_t> turned(static_cast<size_t>(rank));
  std::iota(turned.begin(), turned.end(), 0);
  std::swap(turned.end()[-1], turned.end()[-2]);
  const Term x = f.input("x");
  return f.text({transpose(scaled_cofactors(x, n, 1 / f.op("Det", {x})), turned)});
}

}  // namespace

std::vector<FunctionRow> determinant_functions() { return {{"DetGrad", det_grad}, {"Inverse", inverse}}; }

}  // namespace onnx_train
