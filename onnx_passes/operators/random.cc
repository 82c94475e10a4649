#include "onnx_passes/operators/random.h"

#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

namespace {

using enum ElementTypes;

// Sizes of the attribute `shape` are not negative, and their product is a number of elements.
void check_sizes(const Node& node) {
  constexpr int64_t kMost = int64_t{1} << 47;  // bytes of a process's addresses
  const Shape sizes = node.attr("shape", Shape{});
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count) || count > kMost)
      fail(node.label(), ": its shape is ", to_string(sizes), ", which no memory holds");
  }
}

}  // namespace

bool is_random(const Node& node) { return node.domain().empty() && is_random_operator(node.op()); }

bool is_random_operator(std::string_view op) {
  return op.starts_with("Random") || op == "Bernoulli" || op == "Multinomial";
}

std::vector<Operator> random_operators() {
  return {
      Operator{"RandomNormal", "-> y:float", "", kOfSchema, check_sizes},
      Operator{"RandomUniform", "-> y:float", "", kOfSchema, check_sizes},
      {"RandomNormalLike", "x:any[S...] -> y:float[S...]"},
      {"RandomUniformLike", "x:any[S...] -> y:float[S...]"},
      {"Bernoulli", "p:float[S...] -> y:any[S...]"},
      {"Multinomial", "logits:float[B, C] -> y:index[B, @sample_size:1] where 1 <= C, 1 <= @sample_size:1"},
  };
}

}  // namespace onnx_train
