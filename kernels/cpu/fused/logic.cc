// Fused comparisons, boolean operators, selection and casts.
#include <cstring>
#include <type_traits>

#include "kernels/cpu/elementwise/choose.h"
#include "kernels/cpu/elementwise/convert.h"
#include "kernels/cpu/fused/maps.h"
#include "kernels/math/binary.h"
#include "kernels/math/unary.h"

namespace onnx_train::cpu {
namespace {

template <typename Op>
FusedOperator comparison(const char* op) {
  return {op, [](const Node& node) -> Operation {
            if (!one_type(node)) return {};
            if (node.input(0)->dtype() == DType::kBool) return binary_operation<bool, bool, bool>(Op{});
            return dispatch_fused_number(node.input(0)->dtype(),
                                         []<typename T>(T) -> Operation { return binary_operation<T, T, bool>(Op{}); });
          }};
}

template <typename Op>
FusedOperator logical(const char* op) {
  return {op, [](const Node& node) -> Operation {
            if (!one_type(node) || node.input(0)->dtype() != DType::kBool) return {};
            return binary_operation<bool, bool, bool>(Op{});
          }};
}

Operation make_not(const Node& node) {
  if (node.input(0)->dtype() != DType::kBool) return {};
  return unary_operation<bool, bool>(math::Not{});
}

Operation make_is_nan(const Node& node) {
  if (!is_float_or_double(node.input(0)->dtype())) return {};
  return dispatch_float(node.input(0)->dtype(),
                        []<typename T>(T) -> Operation { return unary_operation<T, bool>(math::IsNaN{}); });
}

Operation make_is_inf(const Node& node) {
  const math::IsInf op{node.attr("detect_positive", 1) != 0, node.attr("detect_negative", 1) != 0};
  if (!is_float_or_double(node.input(0)->dtype())) return {};
  return dispatch_float(node.input(0)->dtype(),
                        [&]<typename T>(T) -> Operation { return unary_operation<T, bool>(op); });
}

template <typename T>
Operation where_operation() {
  return [](int64_t n, const FusedOperand* in, void* out) {
    select_choose<T>(in[0].moves, in[1].moves, in[2].moves)(n, in[0].as<uint8_t>(), in[1].as<T>(), in[2].as<T>(),
                                                            static_cast<T*>(out));
  };
}

Operation make_where(const Node& node) {
  if (!is_movable(node.output()->dtype())) return {};
  switch (size_of(node.output()->dtype())) {
    case 1: return where_operation<uint8_t>();
    case 2: return where_operation<uint16_t>();
    case 4: return where_operation<uint32_t>();
    default: return where_operation<uint64_t>();
  }
}

// Reads bool as bytes: GCC 12 does not vectorize loads of bool.
template <typename F>
Operation dispatch_cast(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  if (dtype == DType::kFloat16) return f(Float16{});
  if (dtype == DType::kBool) return f(bool{});
  return dispatch_fused_number(dtype, f);
}

template <typename From, typename To>
Operation cast_operation() {
  if constexpr (std::is_same_v<From, To>) {
    return [](int64_t n, const FusedOperand* in, void* out) {
      if (in[0].data != out) std::memcpy(out, in[0].data, static_cast<size_t>(n) * sizeof(From));
    };
  } else if constexpr (std::is_same_v<From, bool>) {
    return cast_operation<uint8_t, To>();
  } else {
    return unary_operation<From, To>([](From x) { return convert<To>(x); });
  }
}

Operation make_cast(const Node& node) {
  return dispatch_cast(node.input(0)->dtype(), [&]<typename From>(From) {
    return dispatch_cast(node.output()->dtype(),
                         [&]<typename To>(To) -> Operation { return cast_operation<From, To>(); });
  });
}

}  // namespace

std::vector<FusedOperator> fused_logic() {
  return {
      comparison<math::Equal>("Equal"),
      comparison<math::Less>("Less"),
      comparison<math::LessOrEqual>("LessOrEqual"),
      comparison<math::Greater>("Greater"),
      comparison<math::GreaterOrEqual>("GreaterOrEqual"),
      logical<math::BitwiseAnd>("And"),
      logical<math::BitwiseOr>("Or"),
      logical<math::BitwiseXor>("Xor"),
      {"Not", make_not, "", 1},
      {"IsNaN", make_is_nan, "", 1},
      {"IsInf", make_is_inf, "", 1},
      {"Where", make_where},
      {"Cast", make_cast, "", 1},
  };
}

}  // namespace onnx_train::cpu
