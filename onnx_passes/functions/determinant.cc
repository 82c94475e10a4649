// The gradient of Det: dx = dy cof(x), where a cofactor is, up to its sign, the determinant of x without its row and
// column; so it is right for singular matrices, too. The text depends on the number of rows.
#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> determinant_functions();

namespace {

FunctionText det_grad(const FunctionCall& call) {
  const int64_t n = (*call.inputs.at(1).type().dims).back().value();
  std::string others, signs;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      signs += concat(signs.empty() ? "" : ", ", (i + j) % 2 == 0 ? "1.0" : "-1.0");
      if (j != i) others += concat(others.empty() ? "" : ", ", j);
    }
  }
  BodyText t;
  t.line("x_shape = Shape (x)");
  t.line("list_shape = Constant <value_ints = [-1, ", n, ", ", n, "]> ()");
  t.line("matrices = Reshape (x, list_shape)");
  t.line("signs_list = Constant <value_floats = [", signs, "]> ()");
  t.line("matrix_shape = Constant <value_ints = [", n, ", ", n, "]> ()");
  t.line("signs_given = Reshape (signs_list, matrix_shape)");
  t.line("signs = CastLike (signs_given, x)");
  t.line("column_shape = Constant <value_ints = [-1, 1, 1]> ()");
  t.line("dy_column = Reshape (dy, column_shape)");
  t.line("dy_signs = Mul (dy_column, signs)");
  if (n == 1) {  // a matrix without elements has the determinant 1
    t.line("list = Identity (dy_signs)");
  } else {
    t.line("others_list = Constant <value_ints = [", others, "]> ()");
    t.line("others_shape = Constant <value_ints = [", n, ", ", n - 1, "]> ()");
    t.line("others = Reshape (others_list, others_shape)");
    t.line("without_rows = Gather <axis = 1> (matrices, others)");
    t.line("without_columns = Gather <axis = 3> (without_rows, others)");
    t.line("minors = Transpose <perm = [0, 1, 3, 2, 4]> (without_columns)");
    t.line("determinants = Det (minors)");
    t.line("list = Mul (dy_signs, determinants)");
  }
  t.line("dx = Reshape (list, x_shape)");
  return {concat("DetGrad (dy, x) => (dx) {\n", t.text(), "}\n"), concat("rows_", n)};
}

}  // namespace

std::vector<FunctionRow> determinant_functions() { return {{"DetGrad", det_grad}}; }

}  // namespace onnx_train
