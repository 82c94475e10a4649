// A causal language model of 7 tokens and 16 positions, as text. Tests only; any thread.
#pragma once

#include <string>

namespace onnx_train {

// y[batch, length, 4] of x of the same shape: two heads, a causal mask of the sizes of the scores.
inline constexpr const char* kCausal = R"(
    heads = Constant <value_ints = [0, 0, 2, 2]> ()
    flat = Constant <value_ints = [0, 0, 4]> ()
    hidden = Constant <value = float {-1e9}> ()
    qw = MatMul(x, wq)
    kw = MatMul(x, wk)
    vw = MatMul(x, wv)
    qh = Reshape(qw, heads)
    kh = Reshape(kw, heads)
    vh = Reshape(vw, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (qh)
    keys = Transpose <perm = [0, 2, 1, 3]> (kh)
    k = Transpose <perm = [0, 1, 3, 2]> (keys)
    v = Transpose <perm = [0, 2, 1, 3]> (vh)
    scores = MatMul(q, k)
    sizes_of_q = Shape <start = 1, end = 2> (qh)
    sizes_of_k = Shape <start = 3> (k)
    square = Concat <axis = 0> (sizes_of_q, sizes_of_k)
    full = Expand(hidden, square)
    later = Constant <value_int = 1> ()
    mask = Trilu <upper = 1> (full, later)
    masked = Add(scores, mask)
    weights = Softmax <axis = -1> (masked)
    read = MatMul(weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (read)
    y = Reshape(back, flat)
)";

// The same times a number that no rule of a cache sees to depend on the tokens: how many there are, up to 3.
inline std::string counting_few() {
  std::string scaled = kCausal;
  scaled.replace(scaled.find("y = Reshape"), 1, "z");
  return scaled + R"(
    sizes = Shape(x)
    at = Constant <value_int = 1> ()
    three = Constant <value_int = 3> ()
    all = Gather(sizes, at)
    few = Min(all, three)
    factor = Cast <to = 1> (few)
    y = Mul(z, factor)
)";
}

// `count` numbers that are not alike.
inline std::string numbers(int count, int seed) {
  std::string text;
  unsigned state = static_cast<unsigned>(seed) * 2654435761U + 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    text += (i > 0 ? ", " : "") + std::to_string(static_cast<int>(state >> 20U) % 2000 / 1000.0 - 1);
  }
  return text;
}

// `attention`: nodes that compute y of x. `sizes`: names or numbers, of at most 16 tokens.
inline std::string small_decoder(const std::string& attention, const std::string& sizes = "batch, length") {
  const auto matrix = [](const char* name, int rows, int seed) {
    const std::string size = "float[" + std::to_string(rows) + ",4] ";
    return size + name + " = {" + numbers(rows * 4, seed) + "}, ";
  };
  return R"(<ir_version: 10, opset_import: ["" : 21]> decoder (int64[)" + sizes + "] tokens) => (float[" + sizes +
         ", 7] logits) <" + matrix("table", 7, 1) + matrix("places", 16, 2) + matrix("wq", 4, 3) + matrix("wk", 4, 4) +
         matrix("wv", 4, 5) + R"(int64 unread = {0}> {
    first = Constant <value_ints = [0]> ()
    count = Shape <start = 1> (tokens)
    positions = Slice(places, first, count, first)
    words = Gather(table, tokens)
    x = Add(words, positions)
)" + attention +
         R"(
    sum = Add(x, y)
    turned = Transpose <perm = [1, 0]> (table)
    logits = MatMul(sum, turned)
  })";
}

}  // namespace onnx_train
