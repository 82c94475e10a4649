// The gradient of Det: dx = dy cof(x), where a cofactor is, up to its sign, the determinant of x without its row and
// column; so it is right for singular matrices, too. The body depends on the number of rows.
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

FunctionText det_grad(const FunctionCall& call) {
  Body f("DetGrad (dy, x) => (dx)", call);
  const int64_t n = (*call.inputs.at(1).type().dims).back().value();
  f.depends_on(concat("rows_", n));
  std::vector<int64_t> others;
  std::vector<double> signs;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      signs.push_back((i + j) % 2 == 0 ? 1 : -1);
      if (j != i) others.push_back(j);
    }
  }
  const Term x = f.input("x"), matrices = reshape(x, {-1, n, n});
  const Term signs_of_x = cast_like(reshape(f.constant(DType::kFloat, signs), {n, n}), x);
  Term cofactors = reshape(f.input("dy"), {-1, 1, 1}) * signs_of_x;
  if (n > 1) {  // a matrix without elements has the determinant 1
    const Term rest = f.op("Reshape", {others, {n, n - 1}});
    const Term minors = transpose(gather(gather(matrices, rest, 1), rest, 3), {0, 1, 3, 2, 4});
    cofactors = cofactors * f.op("Det", {minors});
  }
  return f.text({f.op("Reshape", {cofactors, shape(x)})});
}

}  // namespace

std::vector<FunctionRow> determinant_functions() { return {{"DetGrad", det_grad}}; }

}  // namespace onnx_train
