// The notation of bodies: one node each.
#include <cmath>

#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Body& body_of(const Term& a, const Term& b = {}) {
  if (!a.body() && !b.body()) fail("an operator of literals in a body");
  return *(a.body() ? a : b).body();
}

Term binary(const char* op, const Term& a, const Term& b) { return body_of(a, b).op(op, {a, b}); }
Term unary(const char* op, const Term& x) { return body_of(x).op(op, {x}); }

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += concat(text.empty() ? "" : ", ", number);
  return text;
}

}  // namespace

Term operator+(const Term& a, const Term& b) { return binary("Add", a, b); }
Term operator-(const Term& a, const Term& b) { return binary("Sub", a, b); }
Term operator*(const Term& a, const Term& b) { return binary("Mul", a, b); }
Term operator/(const Term& a, const Term& b) { return binary("Div", a, b); }
Term operator-(const Term& a) { return unary("Neg", a); }
Term operator<(const Term& a, const Term& b) { return binary("Less", a, b); }
Term operator>(const Term& a, const Term& b) { return binary("Greater", a, b); }
Term operator<=(const Term& a, const Term& b) { return binary("LessOrEqual", a, b); }
Term operator>=(const Term& a, const Term& b) { return binary("GreaterOrEqual", a, b); }
Term equal(const Term& a, const Term& b) { return binary("Equal", a, b); }
Term logical_and(const Term& a, const Term& b) { return binary("And", a, b); }
Term logical_or(const Term& a, const Term& b) { return binary("Or", a, b); }
Term logical_not(const Term& a) { return unary("Not", a); }
Term where(const Term& condition, const Term& a, const Term& b) { return body_of(condition).where(condition, a, b); }
Term exp(const Term& x) { return unary("Exp", x); }
Term log(const Term& x) { return unary("Log", x); }
Term sqrt(const Term& x) { return unary("Sqrt", x); }
Term abs(const Term& x) { return unary("Abs", x); }
Term sign(const Term& x) { return unary("Sign", x); }
Term tanh(const Term& x) { return unary("Tanh", x); }
Term erf(const Term& x) { return unary("Erf", x); }
Term sigmoid(const Term& x) { return unary("Sigmoid", x); }
Term floor(const Term& x) { return unary("Floor", x); }
Term ceil(const Term& x) { return unary("Ceil", x); }
Term round(const Term& x) { return unary("Round", x); }
Term pow(const Term& x, const Term& y) { return binary("Pow", x, y); }
Term max(const Term& a, const Term& b) { return binary("Max", a, b); }
Term min(const Term& a, const Term& b) { return binary("Min", a, b); }
Term cast(const Term& x, DType dtype) { return body_of(x).cast(x, dtype); }
Term cast_like(const Term& x, const Term& other) { return body_of(x, other).cast_like(x, other); }

Term shape(const Term& x) { return body_of(x).op("Shape", {x}, "", DType::kInt64); }
Term shape(const Term& x, int64_t start, int64_t end) {
  return body_of(x).op("Shape", {x}, concat("start = ", start, ", end = ", end), DType::kInt64);
}
Term shape_from(const Term& x, int64_t start) {
  return body_of(x).op("Shape", {x}, concat("start = ", start), DType::kInt64);
}
Term size(const Term& x) { return body_of(x).op("Size", {x}, "", DType::kInt64); }
Term reshape(const Term& x, const Term& shape) {
  return body_of(x).op("Reshape", {x, shape}, shape.is_list() ? "" : "allowzero = 1");
}
Term transpose(const Term& x, const std::vector<int64_t>& permutation) {
  return body_of(x).op("Transpose", {x}, concat("perm = [", list(permutation), "]"));
}
Term expand(const Term& x, const Term& shape) { return binary("Expand", x, shape); }
Term unsqueeze(const Term& x, const Term& axes) { return binary("Unsqueeze", x, axes); }
Term squeeze(const Term& x, const Term& axes) { return binary("Squeeze", x, axes); }
Term slice(const Term& x, const Term& starts, const Term& ends, const Term& axes) {
  return body_of(x).op("Slice", {x, starts, ends, axes});
}
Term gather(const Term& x, const Term& indices, int64_t axis) {
  Body& b = body_of(x);
  return b.op("Gather", {x, b.as(indices, DType::kInt64)}, axis == 0 ? "" : concat("axis = ", axis));
}
Term gather_elements(const Term& x, const Term& indices, int64_t axis) {
  return body_of(x).op("GatherElements", {x, indices}, concat("axis = ", axis));
}
Term range(const Term& end) { return body_of(end).op("Range", {0, end, 1}); }
Term zeros(const Term& shape, const Term& like) { return cast_like(unary("ConstantOfShape", shape), like); }
Term scatter_add(const Term& data, const Term& indices, const Term& updates, int64_t axis) {
  return body_of(data).op("ScatterElements", {data, indices, updates},
                          concat("axis = ", axis, ", reduction = \"add\""));
}

Term matmul(const Term& a, const Term& b) { return binary("MatMul", a, b); }
Term reduce(const char* op, const Term& x, const Term& axes, bool keepdims) {
  return body_of(x).op(op, {x, axes}, keepdims ? "" : "keepdims = 0");
}

}  // namespace onnx_train
