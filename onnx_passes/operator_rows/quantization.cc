// Quantization: the operators of ONNX, which lowering expands, and ours.
#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// The pool lists n-grams of one word, then those of two, and so on, each of which counts in a column of the output.
void check_grams(const Node& node) {
  constexpr int64_t kMostColumns = 1 << 24;
  const auto words = static_cast<int64_t>(node.attr("pool_int64s", Shape{}).size());
  const Shape starts = node.attr("ngram_counts", Shape{}), columns = node.attr("ngram_indexes", Shape{});
  int64_t grams = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : words, length = static_cast<int64_t>(i) + 1;
    if (starts[i] < 0 || end < starts[i] || end > words || (end - starts[i]) % length != 0)
      fail(node.label(), ": its ngram_counts are ", to_string(starts), ", which do not divide the ", words,
           " words of its pool into n-grams");
    grams += (end - starts[i]) / length;
  }
  int64_t most = 0;
  for (const int64_t column : columns) {
    if (column < 0 || column >= kMostColumns) fail(node.label(), ": its ngram_indexes name column ", column);
    most = std::max(most, column);
  }
  if (static_cast<int64_t>(columns.size()) != grams)
    fail(node.label(), ": it has ", columns.size(), " ngram_indexes for ", grams, " n-grams");
  const size_t weights = node.attr("weights", std::vector<float>{}).size();
  if (weights > 0 && static_cast<int64_t>(weights) != most + 1)
    fail(node.label(), ": it has ", weights, " weights for ", most + 1, " columns");
  if (node.attr("max_skip_count", 0) > (1 << 20)) fail(node.label(), ": its max_skip_count is too large");
}

}  // namespace

std::vector<Operator> quantization_operators() {
  // Scales are settings: no weights, but trained where they are named.
  const auto elementwise = [](const char* op, const char* shapes, const char* domain, ElementTypes types) {
    return Operator{op, shapes, domain, types}.of_kind(OperatorKind::kElementwise).with_settings({1, InputRange::kAll});
  };
  return {
      elementwise("QuantizeLinear", "x[S...] scale zero_point? -> y[S...]", "", ElementTypes::kOfSchema),
      elementwise("DequantizeLinear", "x[S...] scale zero_point? -> y[S...]", "", ElementTypes::kOfSchema),
      elementwise("FakeQuantizeInteger", "x[S...] scale[~S...] zero_point[~S...] -> y[S...]", kDomain,
                  ElementTypes::kOneFloat),
      elementwise("FakeQuantizeSign", "x[S...] scale[~S...] -> y[S...]", kDomain, ElementTypes::kOneFloat),
      elementwise("FakeQuantizeActivation", "x[S...] range[_] -> y[S...]", kDomain, ElementTypes::kOneFloat),
      {"MatMulInteger", "a b a_zero? b_zero? -> y:int32"},
      {"ConvInteger", "x[N, C, S...] w[M, _, K...] x_zero?[] w_zero? -> y:int32 where #K = #S"},
      {"QLinearMatMul", "a a_scale a_zero b b_scale b_zero y_scale[] y_zero[] -> y"},
      {"QLinearConv",
       "x[N, C, S...] x_scale[] x_zero[] w[M, _, K...] w_scale w_zero y_scale[] y_zero[] bias?:int32[M] -> "
       "y[N, M, O...] where #K = #S, #O = #S"},
      {"TfIdfVectorizer", "x -> y:float", "", ElementTypes::kOfSchema, check_grams},
      {"Quantize", "x[S...] scale:float[] operand?[S...] -> first:any second?:any third?:any fourth?:any", kDomain},
      {"UnpackInt4", "packed[_...] -> q[_...]", kDomain},
      {"FakeQuantizeWeight", "w[S...] -> y[S...]", kDomain, ElementTypes::kOneFloat},
  };
}

}  // namespace onnx_train
