#include "onnx_passes/functions/random_operators.h"

#include <bit>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Attrs limits(const Node& node, int stream) {
  return {{"stream", stream}, {"low", node.attr("low", 0.0f)}, {"high", node.attr("high", 1.0f)}};
}

Attrs moments(const Node& node, int stream) {
  return {{"stream", stream}, {"mean", node.attr("mean", 0.0f)}, {"scale", node.attr("scale", 1.0f)}};
}

// The type of the output, as far as attributes and inputs say it: a file need not declare the types of its values.
DType type_of(const Node& node) {
  const auto given = static_cast<DType>(node.attr("dtype", 0));
  if (given != DType::kUndefined) return given;
  if (node.is("Multinomial")) return DType::kInt32;
  return node.num_inputs() > 0 ? node.input(0)->dtype() : DType::kFloat;
}

Var in_type_of(Var x, Var other) {
  return other.dtype() == DType::kUndefined ? x.builder().op("CastLike", {x, other}) : cast_like(x, other);
}

Var uniform_numbers(Var key, Var shape, int stream) {
  return call(key.builder(), "RandomUniform", {key, shape}, {{"stream", stream}});
}

// c_i = Σ e^(x_j - max x) over j <= i    y = number of classes with c_i <= u c_last: the first one above, which has a
// probability of its own, since u < 1. All comparisons with NaN are false, and give class 0.
Var samples(const Node& node, Var logits, Var key, int stream) {
  Builder& b = key.builder();
  const int64_t count = node.attr("sample_size", 1);
  const Var weights = exp(logits - reduce_max(logits, {1}));
  const Var cumulative = b.op("CumSum", {weights, b.scalar(DType::kInt64, 1)});
  const Var total = slice(cumulative, -1, INT64_MAX, 1);  // [batch, 1]
  const Var u = uniform_numbers(key, concat({dim(logits, 0), b.ints({count})}, 0), stream);
  const Var bound = unsqueeze(in_type_of(u, total) * total, {2});  // [batch, samples, 1]
  const Var is_below = unsqueeze(cumulative, {1}) <= bound;
  return reduce_sum(cast(is_below, DType::kInt64), {2}, /*keepdims=*/false);
}

void expect_type(const Node& node, bool fits, const char* wanted) {
  if (!fits) fail(node.label(), ": its dtype is ", name(type_of(node)), "; it must be ", wanted);
}

}  // namespace

Var draw(Builder& b, const Node& node, const std::vector<Var>& inputs, Var key, int stream) {
  const DType dtype = type_of(node);
  const bool is_open = dtype == DType::kUndefined;  // that of the input, which nothing says
  if (node.is("Multinomial")) {
    expect_type(node, dtype == DType::kInt32 || dtype == DType::kInt64, "int32 or int64");
    return cast(samples(node, inputs.at(0), key, stream), dtype);
  }
  const Var sizes = inputs.empty() ? b.ints(node.attr("shape", std::vector<int64_t>{})) : shape(inputs[0]);
  const auto typed = [&](Var x) { return is_open ? b.op("CastLike", {x, inputs.at(0)}) : cast(x, dtype); };
  if (node.is("Bernoulli")) {
    expect_type(node, is_open || is_float(dtype) || is_integer(dtype) || dtype == DType::kBool, "a number or bool");
    return typed(in_type_of(uniform_numbers(key, sizes, stream), inputs.at(0)) < inputs[0]);
  }
  expect_type(node, is_open || is_float(dtype), "a float type");
  const bool is_normal = node.op().starts_with("RandomNormal");
  return typed(call(b, is_normal ? "RandomNormal" : "RandomUniform", {key, sizes},
                    is_normal ? moments(node, stream) : limits(node, stream)));
}

Var seeded(const Node& node, Var key, Var first_key) {
  if (!node.has_attr("seed")) return key;
  Builder& b = key.builder();
  const Tensor seed = Tensor::of<uint64_t>({1}, {std::bit_cast<uint32_t>(node.attr("seed", 0.0f))});
  const auto seed_of = [](Var k) { return slice(k, 0, 1, 0); };
  Var own = b.constant(seed);
  if (key.value() != first_key.value()) {
    const Var current = seed_of(key);
    own = own + (current - seed_of(first_key));
  }
  return concat({own, slice(key, 1, 2, 0)}, 0);
}

}  // namespace onnx_train
