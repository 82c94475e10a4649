// Products whose operands a lowering pass has relieved of their transposes.
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> product_functions() {
  return {
      function("TransposedMatMul", R"(
TransposedMatMul <perm_a: ints, perm_b: ints, perm_y: ints> (a, b) => (y)
{
  left = Transpose <perm: ints = @perm_a> (a)
  right = Transpose <perm: ints = @perm_b> (b)
  product = MatMul (left, right)
  y = Transpose <perm: ints = @perm_y> (product)
})"),
  };
}

}  // namespace onnx_train
