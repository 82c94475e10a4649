// Bodies of operators that compute in integers: quantized products, and counts of words. Products are summed in
// float64, which holds them exactly: 2^53 is more than 2^36 products of bytes.
#include <algorithm>
#include <limits>

#include "onnx_passes/functions/standard_body.h"

namespace onnx_train {

std::vector<StandardBody> integer_bodies();

namespace {

// A setting that is one number or a list of one for each place along `axis` of a tensor of `rank`, as float64.
Var setting(Var given, int64_t axis, int64_t rank) {
  const Var wide = cast(given, DType::kDouble);
  if (given.rank() != 1) return wide;
  std::vector<int64_t> shape(static_cast<size_t>(rank), 1);
  shape[static_cast<size_t>(axis)] = -1;
  return reshape(wide, shape);
}

// x less its zero point, which may be missing.
Var centered(Var x, Var zero, int64_t axis) {
  const Var wide = cast(x, DType::kDouble);
  return zero ? wide - setting(zero, axis, x.rank()) : wide;
}

// The operands of a product of matrices have zero points by row and by column.
Var matrix_product(Var a, Var a_zero, Var b, Var b_zero) {
  const Var rows = centered(a, a_zero, std::max<int64_t>(a.rank() - 2, 0));
  return matmul(rows, centered(b, b_zero, b.rank() - 1));
}

Var convolution(Builder& b, const Node& node, Var x, Var x_zero, Var w, Var w_zero, Var bias) {
  std::vector<Var> inputs = {centered(x, x_zero, 1), centered(w, w_zero, 0)};
  if (bias) inputs.push_back(cast(bias, DType::kDouble));
  Attrs attrs;
  for (const char* name : {"dilations", "kernel_shape", "pads", "strides"}) {
    if (node.has_attr(name)) attrs.emplace_back(name, node.attr(name, Shape{}));
  }
  attrs.emplace_back("group", node.attr("group", 1));
  attrs.emplace_back("auto_pad", node.attr("auto_pad", "NOTSET"));
  return b.op("Conv", inputs, attrs);
}

// saturate(round(x) + zero), of the type of `zero`
Var quantized(Var x, Var zero) {
  const bool is_signed = zero.dtype() == DType::kInt8;
  const Var rounded = x.builder().op("Round", {x}), y = rounded + cast(zero, DType::kDouble);
  const auto bound = [&](double value) { return x.builder().scalar(DType::kDouble, value); };
  return cast(min(max(y, bound(is_signed ? -128 : 0)), bound(is_signed ? 127 : 255)), zero.dtype());
}

bool is_byte(const Value* v) { return v && (v->dtype() == DType::kInt8 || v->dtype() == DType::kUint8); }

// ---- MatMulInteger, ConvInteger: sums as they are

std::vector<Var> integer_product(Builder& b, const Node& node) {
  return {
      cast(matrix_product(input(b, node, 0), input(b, node, 2), input(b, node, 1), input(b, node, 3)), DType::kInt32)};
}

std::vector<Var> integer_convolution(Builder& b, const Node& node) {
  return {cast(convolution(b, node, input(b, node, 0), input(b, node, 2), input(b, node, 1), input(b, node, 3), {}),
               DType::kInt32)};
}

// ---- QLinearMatMul, QLinearConv: sums times the scales of both operands over that of the result

bool is_quantized_ready(const Node& node) { return has_ranks(node) && is_byte(node.input(7)); }

std::vector<Var> quantized_product(Builder& b, const Node& node) {
  const Var x = input(b, node, 0), w = input(b, node, 3);
  const Var x_scale = setting(input(b, node, 1), std::max<int64_t>(x.rank() - 2, 0), x.rank());
  const Var of_products = x_scale * setting(input(b, node, 4), w.rank() - 1, w.rank());
  const Var scales = of_products / cast(input(b, node, 6), DType::kDouble);
  return {quantized(matrix_product(x, input(b, node, 2), w, input(b, node, 5)) * scales, input(b, node, 7))};
}

std::vector<Var> quantized_convolution(Builder& b, const Node& node) {
  const Var x = input(b, node, 0), w = input(b, node, 3);
  const Var sums = convolution(b, node, x, input(b, node, 2), w, input(b, node, 5), input(b, node, 8));
  const Var x_scale = setting(input(b, node, 1), 1, x.rank());
  const Var of_products = x_scale * setting(input(b, node, 4), 1, x.rank());
  const Var scales = of_products / cast(input(b, node, 6), DType::kDouble);
  return {quantized(sums * scales, input(b, node, 7))};
}

// ---- TfIdfVectorizer

bool is_counting_ready(const Node& node) {
  const Value* x = node.input(0);
  const bool is_line = x->has_rank() && (x->rank() == 1 || x->rank() == 2) && x->type().dims->back().known();
  return is_line && is_integer(x->dtype()) && !node.attr("ngram_indexes", Shape{}).empty();
}

// How often each of the n-grams `grams` [K, n] is in a row of x [B, L], its words `step` apart: [B, K].
Var count_grams(Var x, const Tensor& grams, int64_t step) {
  Builder& b = x.builder();
  const int64_t n = grams.shape()[1], positions = std::max<int64_t>((*x.type().dims)[1].value() - (n - 1) * step, 0);
  Tensor places(DType::kInt64, {positions, n});
  for (int64_t i = 0; i < places.size(); ++i) places.set(i, static_cast<double>(i / n + i % n * step));
  const Var windows = unsqueeze(gather(x, b.constant(places), 1), {2});  // [B, P, 1, n]
  const Var differs = cast(logical_not(equal(windows, b.constant(grams.cast(x.dtype())))), DType::kInt64);
  const Var is_there = equal(reduce_sum(differs, {3}, false), b.scalar(DType::kInt64, 0));
  return reduce_sum(cast(is_there, DType::kFloat), {1}, false);
}

// y[b, ngram_indexes[g]] = how often n-gram g is in row b (TF), its weight where it is there (IDF), or the product of
// both (TFIDF). The pool lists all n-grams of one word, then those of two, ..
std::vector<Var> count_words(Builder& b, const Node& node) {
  const Var given = input(b, node, 0);
  const bool is_one = given.rank() == 1;
  const Var x = is_one ? unsqueeze(given, {0}) : given;
  const Shape starts = node.attr("ngram_counts", Shape{}), indexes = node.attr("ngram_indexes", Shape{}),
              pool = node.attr("pool_int64s", Shape{});
  const int64_t shortest = node.attr("min_gram_length", 1), longest = node.attr("max_gram_length", 1),
                skips = node.attr("max_skip_count", 0), size = *std::max_element(indexes.begin(), indexes.end()) + 1;
  Var counts = full(concat({dim(x, 0), b.ints({size})}, 0), DType::kFloat, 0);
  size_t gram = 0;  // number of the first n-gram of a length
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto n = static_cast<int64_t>(i) + 1;
    const auto first = static_cast<size_t>(starts[i]),
               end = i + 1 < starts.size() ? static_cast<size_t>(starts[i + 1]) : pool.size();
    const int64_t number = (static_cast<int64_t>(end) - static_cast<int64_t>(first)) / n;
    if (number > 0 && n >= shortest && n <= longest) {
      Tensor grams(DType::kInt64, {number, n}), selection(DType::kFloat, {number, size});
      for (int64_t k = 0; k < grams.size(); ++k)
        grams.set(k, static_cast<double>(pool[first + static_cast<size_t>(k)]));
      for (int64_t k = 0; k < number; ++k) selection.set(k * size + indexes[gram + static_cast<size_t>(k)], 1);
      for (int64_t skip = 0; skip <= (n > 1 ? skips : 0); ++skip) {
        const Var found = count_grams(x, grams, skip + 1);
        counts = counts + matmul(found, b.constant(selection));
      }
    }
    gram += static_cast<size_t>(std::max<int64_t>(number, 0));
  }
  const std::string mode = node.attr("mode", "TF");
  Var y = mode == "IDF" ? cast(counts > 0.0, DType::kFloat) : counts;
  const std::vector<float> weights = node.attr("weights", std::vector<float>{});
  if (mode != "TF" && !weights.empty()) y = y * b.constant(Tensor::of<float>({size}, weights));
  return {is_one ? squeeze(y, {0}) : y};
}

}  // namespace

std::vector<StandardBody> integer_bodies() {
  return {
      {"MatMulInteger", has_ranks, integer_product},
      {"ConvInteger", has_ranks, integer_convolution},
      {"QLinearMatMul", is_quantized_ready, quantized_product},
      {"QLinearConv", is_quantized_ready, quantized_convolution},
      {"TfIdfVectorizer", is_counting_ready, count_words},
  };
}

}  // namespace onnx_train
