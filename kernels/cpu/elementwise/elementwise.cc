#include "kernels/cpu/elementwise/elementwise.h"

#include <iterator>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/support/maps.h"
#include "kernels/math/unary.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
Kernel unary(const char* op) {
  return float_unary(op, [](const Node&, auto) { return Op{}; });
}

}  // namespace

std::vector<Kernel> math_kernels() {
  return {
      unary<math::Sqrt>("Sqrt"),   unary<math::Reciprocal>("Reciprocal"),
      unary<math::Exp>("Exp"),     unary<math::Log>("Log"),
      unary<math::Erf>("Erf"),     unary<math::Floor>("Floor"),
      unary<math::Ceil>("Ceil"),   unary<math::Round>("Round"),
      unary<math::Sin>("Sin"),     unary<math::Cos>("Cos"),
      unary<math::Tan>("Tan"),     unary<math::Asin>("Asin"),
      unary<math::Acos>("Acos"),   unary<math::Atan>("Atan"),
      unary<math::Sinh>("Sinh"),   unary<math::Cosh>("Cosh"),
      unary<math::Asinh>("Asinh"), unary<math::Acosh>("Acosh"),
      unary<math::Atanh>("Atanh"),
  };
}

std::vector<Kernel> elementwise_kernels() {
  std::vector<Kernel> all;
  for (auto* part : {arithmetic_kernels, math_kernels, logic_kernels, cast_kernels}) {
    std::vector<Kernel> kernels = part();
    std::move(kernels.begin(), kernels.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace onnx_train::cpu
