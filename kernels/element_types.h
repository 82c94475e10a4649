// Sets of element types, for rows of operators that every device reads: all operands of a row have one of them.
// dispatch(dtype, f) returns f(T{}) and throws Error for a type that the set does not contain. Any thread.
#pragma once

#include "kernels/dispatch.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train {

struct Floats {  // float32 and float64
  bool contains(DType dtype) const { return is_float_or_double(dtype); }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dispatch_float(dtype, f);
  }
};

struct Numbers {
  bool contains(DType dtype) const { return is_numeric(dtype); }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dispatch_numeric(dtype, f);
  }
};

struct NumbersAndBool {
  bool contains(DType dtype) const { return is_numeric(dtype) || dtype == DType::kBool; }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dispatch_any(dtype, f);
  }
};

struct Integers {
  bool contains(DType dtype) const { return is_integer(dtype); }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dispatch_integer(dtype, f);
  }
};

// T is the unsigned integer of the element's size.
struct BitsOfIntegers {
  bool contains(DType dtype) const { return is_integer(dtype); }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dispatch_size(size_of(dtype), f);
  }
};

struct Bool {
  bool contains(DType dtype) const { return dtype == DType::kBool; }
  template <typename F>
  auto dispatch(DType, F&& f) const {
    return f(bool{});
  }
};

// Types of the base of Pow; its exponent is any number.
struct PowerBases {
  bool contains(DType dtype) const {
    return is_float_or_double(dtype) || dtype == DType::kInt32 || dtype == DType::kInt64;
  }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    if (dtype == DType::kInt32) return f(int32_t{});
    if (dtype == DType::kInt64) return f(int64_t{});
    return dispatch_float(dtype, f);
  }
};

struct Castable {
  bool contains(DType dtype) const {
    return NumbersAndBool{}.contains(dtype) || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    if (dtype == DType::kFloat16) return f(Float16{});
    if (dtype == DType::kBFloat16) return f(BFloat16{});
    return dispatch_any(dtype, f);
  }
};

}  // namespace onnx_train
