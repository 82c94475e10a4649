// Queries about matrix products of ONNX and of our domain (kernels/functions/products.cc). Pure functions.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/geometry/reductions.h"
#include "kernels/lowering/layout/permutation.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

// Whether the node is a MatMul, Gemm or TransposedMatMul, with no other steps than these after it and without a C.
inline bool multiplies_two(const Node& node, const Epilogue& steps) {
  const bool is_ours = node.is("MatMul", kDomain) || node.is("TransposedMatMul", kDomain) || node.is("Gemm", kDomain);
  return (is_ours || node.is("MatMul") || node.is("Gemm")) && input_at(node, "c") < 0 && has_only(node, steps) &&
         node.attr("alpha", 1.0f) == 1;
}

// Whether the node multiplies two operands and does nothing else.
inline bool is_plain_product(const Node& node) { return multiplies_two(node, {}); }

// Returns what the product adds to its result before all other steps: its bias, or a Gemm's C; null without.
inline Value* addend_of(const Node& product) {
  for (const char* name : {"bias", "c"}) {
    if (const int place = input_at(product, name); place >= 0) return product.input(place);
  }
  return nullptr;
}

// Returns the number of the operand whose sums the product also computes; nothing for another node.
inline std::optional<int> summed_operand(const Node& product) {
  const Epilogue epilogue = epilogue_of(product);
  if (has_step(epilogue, EpilogueStep::kSumsOfA)) return 0;
  return has_step(epilogue, EpilogueStep::kSumsOfB) ? std::optional<int>(1) : std::nullopt;
}

// Whether the product has two matrices as operands and sums over the rows of operand `i`.
inline bool sums_over_rows(const Node& product, int i) {
  if (product.input(0)->rank() != 2 || product.input(1)->rank() != 2) return false;
  const Shape permutation = product.attr(i == 0 ? "perm_a" : "perm_b", Shape{});
  const bool is_transposed = product.attr(i == 0 ? "transA" : "transB", 0) != 0 || permutation == Shape{1, 0};
  return is_transposed == (i == 0);
}

// Whether the node is the gradient of a weight: aᵀ b of two matrices or its transpose, perhaps with sums of an operand.
inline bool is_gradient_of_weight(const Node& node) {
  return multiplies_two(node, {EpilogueStep::kSumsOfA, EpilogueStep::kSumsOfB}) && sums_over_rows(node, 0) &&
         sums_over_rows(node, 1);
}

// Returns the axis of input 1, a matrix, that becomes the columns of a product, whose rows are those of input 0;
// nothing for another node.
inline std::optional<int64_t> column_axis(const Node& node) {
  const auto has_rank = [](const Value* value) { return value && value->has_rank() && value->rank() >= 2; };
  if (!has_rank(node.input(0)) || !has_rank(node.input(1)) || node.input(1)->rank() != 2) return {};
  if (node.is("MatMul", kDomain) || node.is("MatMul")) return 1;
  if (node.is("Gemm", kDomain) || node.is("Gemm")) {
    const bool is_plain = node.attr("transA", 0) == 0 && node.attr("alpha", 1.0f) == 1 && node.attr("beta", 1.0f) == 1;
    return is_plain ? std::optional<int64_t>(node.attr("transB", 0) == 0) : std::nullopt;
  }
  if (!node.is("TransposedMatMul", kDomain)) return {};
  const Permutation plain = identity(node.input(0)->rank());
  const bool is_plain = node.attr("perm_a", Shape{}) == plain && node.attr("perm_y", Shape{}) == plain;
  return is_plain ? std::optional<int64_t>(node.attr("perm_b", Shape{}) == Shape{0, 1}) : std::nullopt;
}

// The same for products of our domain alone.
inline std::optional<int64_t> axis_of_columns(const Node& node) {
  return node.domain() == kDomain ? column_axis(node) : std::nullopt;
}

// Whether the node sums over all axes but the last.
inline bool sums_columns(const Node& node) {
  const Value* const x = node.input(0);
  if (!node.is("ReduceSum") || !x->type().is_static() || x->rank() < 2) return false;
  const auto axes = reduced_axes(node);
  return axes && !axes->back() && std::count(axes->begin(), axes->end(), true) == x->rank() - 1;
}

// Whether two values have the same type and the same known shape.
inline bool has_type_of(const Value& a, const Value& b) { return a.type().is_static() && a.type() == b.type(); }

// Returns the value whose memory `value` views; `value` itself if it is no view.
inline Value* before_views(Value* value) {
  while (value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
  return value;
}

inline Var with_shape(Var value, const Shape& shape) {
  return value.type().shape() == shape ? value : reshape(value, value.builder().ints(shape));
}

// Returns the attributes of a product of the same layout with this epilogue.
inline Attrs attrs_of_product(const Node& product, const Epilogue& epilogue = {}) {
  Attrs attrs;
  for (const char* name : {"transA", "transB"}) {
    if (product.attr(name, 0) != 0) attrs.emplace_back(name, 1);
  }
  for (const char* name : {"perm_a", "perm_b", "perm_y"}) {
    if (product.op() == "TransposedMatMul") attrs.emplace_back(name, product.attr(name, Shape{}));
  }
  if (!epilogue.empty()) attrs.emplace_back(kEpilogue, to_string(epilogue));
  return attrs;
}

}  // namespace onnx_train
