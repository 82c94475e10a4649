#include <algorithm>

#include "onnx_passes/operators/einsum.h"
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

// x with its axes, one letter each, in another order.
Var in_order(Var x, const std::string& from, const std::string& to) {
  if (from == to) return x;
  std::vector<int64_t> order;
  for (const char letter : to) order.push_back(static_cast<int64_t>(from.find(letter)));
  return transpose(x, order);
}

bool is_permutation(std::string a, std::string b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  return a == b && std::ranges::adjacent_find(a) == a.end();
}

// With the letters of batch axes, own axes of both operands, and one summed axis k:
//   einsum(batch m k, batch k n -> batch m n) = a b
//   einsum(own.. k, k n -> own.. n) = a b, for a matrix b
// Every other order of the axes is a transposition of these.
Var einsum_as_matmul(Builder& b, const Match& m, const Node& node) {
  Var x = b.var(m.values.at("a")), y = b.var(m.values.at("b"));
  if (!is_float_or_double(*node.output()) || !x.value()->has_rank() || !y.value()->has_rank()) return {};
  if (node.num_inputs() != 2) return {};
  const Einsum einsum = parse_einsum(node);
  std::string of_x = einsum.inputs[0], of_y = einsum.inputs[1];
  const auto has = [](const std::string& letters, char c) { return letters.find(c) != std::string::npos; };
  std::string batch, summed, own_x, own_y;
  for (const char c : einsum.output) {
    (has(of_x, c) && has(of_y, c) ? batch : has(of_x, c) ? own_x : own_y) += c;
  }
  for (const char c : of_x) {
    if (!has(einsum.output, c)) summed += c;
  }
  if (summed.size() != 1 || !is_permutation(of_x, batch + own_x + summed) ||
      !is_permutation(of_y, batch + own_y + summed))
    return {};
  if (batch.empty() && own_x.size() == 1 && own_y.size() > 1) {
    std::swap(x, y);
    std::swap(of_x, of_y);
    std::swap(own_x, own_y);
  }
  if (own_y.size() != 1 || own_x.empty() || (!batch.empty() && own_x.size() != 1)) return {};
  x = in_order(x, of_x, batch + own_x + summed);
  y = in_order(y, of_y, batch + summed + own_y);
  return in_order(matmul(x, y), batch + own_x + own_y, einsum.output);
}

}  // namespace

std::vector<Rewrite> product_rewrites() {
  const Pattern q = number("s") * any("q"), k = number("t") * any("k");
  return {
      {"Gemm", op("MatMul", {any("a"), any("b")}) + any("bias"), gemm_with_bias},
      {"MatMul of an Einsum", op("Einsum", {any("a"), any("b")}), einsum_as_matmul},
      {"attention's scale", op("MatMul", {q, k}), scale_once},
      {"attention's scale", op("MatMul", {q, op("Transpose", {k})}), scale_once},
  };
}

}  // namespace onnx_train
