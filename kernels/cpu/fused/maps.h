// Helpers that make fused operations from scalar functors, for the tables of fused operators.
#pragma once

#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/support/maps.h"

namespace onnx_train::cpu {

// Element types that fused programs compute with. All present inputs have the type of the first one.
inline bool is_fused_number(DType dtype) {
  return is_float_or_double(dtype) || dtype == DType::kInt64 || dtype == DType::kInt32;
}

inline bool one_type(const Node& node) {
  for (const Value* input : node.inputs()) {
    if (input && input->dtype() != node.input(0)->dtype()) return false;
  }
  return true;
}

template <typename F>
Operation dispatch_fused_number(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat: return f(float{});
    case DType::kDouble: return f(double{});
    case DType::kInt64: return f(int64_t{});
    case DType::kInt32: return f(int32_t{});
    default: return {};
  }
}

template <typename T, typename R, typename Op>
Operation unary_operation(Op op) {
  return [op](int64_t n, const FusedOperand* in, void* out) { map(n, in[0].as<T>(), static_cast<R*>(out), op); };
}

template <typename A, typename B, typename R, typename Op>
Operation binary_operation(Op op) {
  return [op](int64_t n, const FusedOperand* in, void* out) {
    map(n, in[0].as<A>(), in[0].moves, in[1].as<B>(), in[1].moves, static_cast<R*>(out), op);
  };
}

// op(x) for float32 and float64; `make(node, T{})` returns the functor.
template <typename Make>
FusedOperator fused_float_unary(const char* op, Make make, const char* domain = "") {
  return {op,
          [make](const Node& node) -> Operation {
            if (!is_float_or_double(node.input(0)->dtype())) return {};
            return dispatch_float(node.input(0)->dtype(),
                                  [&]<typename T>(T t) -> Operation { return unary_operation<T, T>(make(node, t)); });
          },
          domain, 1};
}

// op(a, b) for float32 and float64.
template <typename Op>
FusedOperator fused_float_binary(const char* op, const char* domain = "") {
  return {op,
          [](const Node& node) -> Operation {
            if (!is_float_or_double(node.input(0)->dtype()) || !one_type(node)) return {};
            return dispatch_float(node.input(0)->dtype(),
                                  []<typename T>(T) -> Operation { return binary_operation<T, T, T>(Op{}); });
          },
          domain};
}

}  // namespace onnx_train::cpu
