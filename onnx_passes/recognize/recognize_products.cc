#include "onnx_passes/recognize/recognize.h"

namespace onnx_train {
namespace {

bool is_float_or_double(const Value& v) { return v.dtype() == DType::kFloat || v.dtype() == DType::kDouble; }

// a b + bias for matrices, with one bias per column.
Var gemm_with_bias(Builder& b, const Match& m, const Node&) {
  Value *x = m.values.at("a"), *w = m.values.at("b"), *bias = m.values.at("bias");
  const bool shaped =
      x->has_rank() && x->rank() == 2 && w->has_rank() && w->rank() == 2 && bias->has_rank() && bias->rank() == 1;
  if (!shaped || !is_float_or_double(*x)) return {};
  const Dim &columns = (*w->type().dims)[1], &size = (*bias->type().dims)[0];
  if (!columns.known() || !size.known() || columns.value() != size.value()) return {};
  return b.op("Gemm", {b.var(x), b.var(w), b.var(bias)});
}

// (s q) (t k) -> (s t q) k. Not in half precision: both operands were scaled to prevent overflow.
Var scale_once(Builder& b, const Match& m, const Node& last) {
  const double s = m.numbers.at("s"), t = m.numbers.at("t");
  if (s == 1 || t == 1 || !is_float_or_double(*last.output())) return {};
  const Node* transpose = last.input(1)->producer();
  while (hands_on(*transpose)) transpose = transpose->input(0)->producer();
  Var k = b.var(m.values.at("k"));
  if (transpose->is("Transpose")) k = b.like(*transpose, {k})[0];
  return matmul(b.var(m.values.at("q")) * (s * t), k);
}

}  // namespace

std::vector<Rewrite> product_rewrites() {
  const Pattern q = number("s") * any("q"), k = number("t") * any("k");
  return {
      {"Gemm", op("MatMul", {any("a"), any("b")}) + any("bias"), gemm_with_bias},
      {"attention's scale", op("MatMul", {q, k}), scale_once},
      {"attention's scale", op("MatMul", {q, op("Transpose", {k})}), scale_once},
  };
}

}  // namespace onnx_train
