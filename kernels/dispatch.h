// Dispatch from a run-time element type to a compile-time type, for kernels. Pure functions; any thread.
#pragma once

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {

inline bool is_float_or_double(DType dtype) { return dtype == DType::kFloat || dtype == DType::kDouble; }

// Calls f(T{}) for T = float or double; throws Error for other types. Kernels check the type in `supports`.
template <typename F>
auto dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::kFloat) return f(float{});
  if (dtype == DType::kDouble) return f(double{});
  fail("a kernel for float or double got ", name(dtype));
}

// Calls f(T{}) for the integer types.
template <typename F>
auto dispatch_integer(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt8: return f(int8_t{});
    case DType::kUint8: return f(uint8_t{});
    case DType::kInt16: return f(int16_t{});
    case DType::kUint16: return f(uint16_t{});
    case DType::kInt32: return f(int32_t{});
    case DType::kUint32: return f(uint32_t{});
    case DType::kInt64: return f(int64_t{});
    case DType::kUint64: return f(uint64_t{});
    default: fail("a numeric kernel got ", name(dtype));
  }
}

// Calls f(T{}) for every type that ONNX calls numeric and that is stored unpacked.
template <typename F>
auto dispatch_numeric(DType dtype, F&& f) {
  return is_float_or_double(dtype) ? dispatch_float(dtype, f) : dispatch_integer(dtype, f);
}

// Calls f(T{}) for every numeric type and bool.
template <typename F>
auto dispatch_any(DType dtype, F&& f) {
  return dtype == DType::kBool ? f(bool{}) : dispatch_numeric(dtype, std::forward<F>(f));
}

// Calls f with an unsigned integer of the element's size, for kernels that only move elements.
template <typename F>
auto dispatch_size(size_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

inline bool is_movable(DType dtype) { return dtype != DType::kString && dtype != DType::kUndefined; }
bool is_numeric(DType dtype);  // a type that dispatch_numeric accepts

}  // namespace onnx_train
