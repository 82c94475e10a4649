// Fused arithmetic and float functions of one operand.
#include <iterator>
#include <limits>

#include "kernels/cpu/fused/maps.h"
#include "kernels/math/binary.h"
#include "kernels/math/unary.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
FusedOperator binary(const char* op) {
  return {op, [](const Node& node) -> Operation {
            if (!one_type(node)) return {};
            return dispatch_fused_number(node.input(0)->dtype(),
                                         []<typename T>(T) -> Operation { return binary_operation<T, T, T>(Op{}); });
          }};
}

template <typename Op>
FusedOperator unary(const char* op) {
  return {op,
          [](const Node& node) -> Operation {
            return dispatch_fused_number(node.input(0)->dtype(),
                                         []<typename T>(T) -> Operation { return unary_operation<T, T>(Op{}); });
          },
          "", 1};
}

template <typename Op>
FusedOperator of_floats(const char* op) {
  return fused_float_unary(op, [](const Node&, auto) { return Op{}; });
}

Operation make_mod(const Node& node) {
  const bool truncated = node.attr("fmod", 0) != 0;
  if (!one_type(node)) return {};
  return dispatch_fused_number(node.input(0)->dtype(), [&]<typename T>(T) -> Operation {
    return truncated ? binary_operation<T, T, T>(math::TruncatedMod{}) : binary_operation<T, T, T>(math::FloorMod{});
  });
}

// Like the kernel of Pow: squares and cubes are computed as products.
template <typename T, typename E>
Operation pow_operation(bool one_exponent) {
  return [one_exponent](int64_t n, const FusedOperand* in, void* out) {
    const T* base = in[0].as<T>();
    const E* exponent = in[1].as<E>();
    T* y = static_cast<T*>(out);
    if constexpr (std::is_floating_point_v<T>) {
      if (one_exponent && in[0].moves && *exponent == E{2}) return map(n, base, y, math::Square{});
      if (one_exponent && in[0].moves && *exponent == E{3}) return map(n, base, y, math::Cube{});
    }
    map(n, base, in[0].moves, exponent, in[1].moves, y, math::Pow{});
  };
}

Operation make_pow(const Node& node) {
  const bool one_exponent = num_elements(node.input(1)->type().shape()) == 1;
  return dispatch_fused_number(node.input(0)->dtype(), [&]<typename T>(T) {
    return dispatch_fused_number(node.input(1)->dtype(),
                                 [&]<typename E>(E) -> Operation { return pow_operation<T, E>(one_exponent); });
  });
}

// Combines the first two operands into the result, then adds one operand at a time.
template <typename T, typename Op>
Operation variadic_operation(int operands, Op op, T scale) {
  return [=](int64_t n, const FusedOperand* in, void* out) {
    T* y = static_cast<T*>(out);
    map(n, in[0].as<T>(), in[0].moves, in[1].as<T>(), in[1].moves, y, op);
    for (int i = 2; i < operands; ++i) map(n, y, true, in[i].as<T>(), in[i].moves, y, op);
    if (scale != T{1}) map(n, y, y, [scale](T x) { return x * scale; });
  };
}

template <typename Op>
Operation make_variadic(const Node& node, bool mean) {
  const int operands = node.num_inputs();
  if (operands < 2 || !one_type(node) || (mean && !is_float_or_double(node.input(0)->dtype()))) return {};
  return dispatch_fused_number(node.input(0)->dtype(), [&]<typename T>(T) -> Operation {
    return variadic_operation<T>(operands, Op{}, mean ? T{1} / static_cast<T>(operands) : T{1});
  });
}

template <typename Op>
FusedOperator variadic(const char* op) {
  return {op, [](const Node& node) { return make_variadic<Op>(node, false); }};
}

// The bounds are scalars, read at run time.
template <typename T>
void clip(int64_t n, const FusedOperand* in, bool has_low, bool has_high, void* out) {
  using Limits = std::numeric_limits<T>;
  constexpr T kLowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  constexpr T kHighest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const math::Clip<T> op{has_low ? *in[1].as<T>() : kLowest, has_high ? *in[2].as<T>() : kHighest};
  map(n, in[0].as<T>(), static_cast<T*>(out), op);
}

Operation make_clip(const Node& node) {
  const bool has_low = node.input(1) != nullptr, has_high = node.input(2) != nullptr;
  if (!one_type(node)) return {};
  return dispatch_fused_number(node.input(0)->dtype(), [&]<typename T>(T) -> Operation {
    return [=](int64_t n, const FusedOperand* in, void* out) { clip<T>(n, in, has_low, has_high, out); };
  });
}

std::vector<FusedOperator> functions_of_floats() {
  return {
      of_floats<math::Sqrt>("Sqrt"),   of_floats<math::Reciprocal>("Reciprocal"),
      of_floats<math::Exp>("Exp"),     of_floats<math::Log>("Log"),
      of_floats<math::Erf>("Erf"),     of_floats<math::Floor>("Floor"),
      of_floats<math::Ceil>("Ceil"),   of_floats<math::Round>("Round"),
      of_floats<math::Sin>("Sin"),     of_floats<math::Cos>("Cos"),
      of_floats<math::Tan>("Tan"),     of_floats<math::Asin>("Asin"),
      of_floats<math::Acos>("Acos"),   of_floats<math::Atan>("Atan"),
      of_floats<math::Sinh>("Sinh"),   of_floats<math::Cosh>("Cosh"),
      of_floats<math::Asinh>("Asinh"), of_floats<math::Acosh>("Acosh"),
      of_floats<math::Atanh>("Atanh"),
  };
}

}  // namespace

std::vector<FusedOperator> fused_arithmetic() {
  std::vector<FusedOperator> all = {
      binary<math::Add>("Add"),
      binary<math::Sub>("Sub"),
      binary<math::Mul>("Mul"),
      binary<math::Div>("Div"),
      {"Mod", make_mod},
      {"Pow", make_pow},
      unary<math::Neg>("Neg"),
      unary<math::Abs>("Abs"),
      unary<math::Sign>("Sign"),
      variadic<math::Max>("Max"),
      variadic<math::Min>("Min"),
      variadic<math::Add>("Sum"),
      {"Mean", [](const Node& node) { return make_variadic<math::Add>(node, true); }},
      {"Clip", make_clip, "", 1},
  };
  std::vector<FusedOperator> functions = functions_of_floats();
  std::move(functions.begin(), functions.end(), std::back_inserter(all));
  return all;
}

}  // namespace onnx_train::cpu
