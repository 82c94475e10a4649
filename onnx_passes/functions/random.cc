// Random numbers as pure functions of a key, a stream and an element's index: Philox4x32-10 (Salmon, Moraes, Dror,
// Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011), written out in uint64 operators of 32-bit words.
// kernels/math/philox.h is the same in C++; both give the same bits.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;  // what the two key words grow by in each round

// Needs `key` (uint64[2]: seed, counter), `stream`, and the number of elements `count` (int64); sets `words`
// (uint64[count]), each below 2^32. The counter block of element i is (i / 4 as 64 bits, stream, counter), the
// element's word i % 4.
std::string philox_words() {
  std::string text = R"(
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  three = Constant <value = int64 {3}> ()
  four = Constant <value = int64 {4}> ()
  flat = Constant <value_ints = [-1]> ()
  first = Constant <value_ints = [0]> ()
  second = Constant <value_ints = [1]> ()
  low_bits = Constant <value = uint64 {4294967295}> ()
  half = Constant <value = uint64 {32}> ()
  multiplier0 = Constant <value = uint64 {3528531795}> ()
  multiplier1 = Constant <value = uint64 {3449720151}> ()
  seed = Gather (key, zero)
  counter = Gather (key, one)
  key_low = BitwiseAnd (seed, low_bits)
  key_high = BitShift <direction = "RIGHT"> (seed, half)
  count_up = Add (count, three)
  blocks = Div (count_up, four)
  block_index = Range (zero, blocks, one)
  block = Cast <to = 13> (block_index)
  stream_int = Constant <value_int: int = @stream> ()
  stream_word = Cast <to = 13> (stream_int)
  counter_word = BitwiseAnd (counter, low_bits)
  nothing = BitwiseXor (block, block)
  c0_0 = BitwiseAnd (block, low_bits)
  c1_0 = BitShift <direction = "RIGHT"> (block, half)
  c2_0 = BitwiseOr (nothing, stream_word)
  c3_0 = BitwiseOr (nothing, counter_word)
)";
  for (int r = 0; r < kRounds; ++r) {
    const auto grown0 = static_cast<uint32_t>(r) * kWeyl0, grown1 = static_cast<uint32_t>(r) * kWeyl1;
    const int n = r + 1;
    text += concat("  weyl0_", r, " = Constant <value = uint64 {", grown0, "}> ()\n");
    text += concat("  weyl1_", r, " = Constant <value = uint64 {", grown1, "}> ()\n");
    text += concat("  key0_wide_", r, " = Add (key_low, weyl0_", r, ")\n");
    text += concat("  key1_wide_", r, " = Add (key_high, weyl1_", r, ")\n");
    text += concat("  key0_", r, " = BitwiseAnd (key0_wide_", r, ", low_bits)\n");
    text += concat("  key1_", r, " = BitwiseAnd (key1_wide_", r, ", low_bits)\n");
    text += concat("  product0_", r, " = Mul (c0_", r, ", multiplier0)\n");
    text += concat("  product1_", r, " = Mul (c2_", r, ", multiplier1)\n");
    text += concat("  high0_", r, " = BitShift <direction = \"RIGHT\"> (product0_", r, ", half)\n");
    text += concat("  high1_", r, " = BitShift <direction = \"RIGHT\"> (product1_", r, ", half)\n");
    text += concat("  mixed0_", r, " = BitwiseXor (high1_", r, ", c1_", r, ")\n");
    text += concat("  mixed1_", r, " = BitwiseXor (high0_", r, ", c3_", r, ")\n");
    text += concat("  c0_", n, " = BitwiseXor (mixed0_", r, ", key0_", r, ")\n");
    text += concat("  c1_", n, " = BitwiseAnd (product1_", r, ", low_bits)\n");
    text += concat("  c2_", n, " = BitwiseXor (mixed1_", r, ", key1_", r, ")\n");
    text += concat("  c3_", n, " = BitwiseAnd (product0_", r, ", low_bits)\n");
  }
  for (int w = 0; w < 4; ++w) text += concat("  column", w, " = Unsqueeze (c", w, "_", kRounds, ", second)\n");
  text += R"(
  table = Concat <axis = 1> (column0, column1, column2, column3)
  all_words = Reshape (table, flat)
  count_list = Reshape (count, flat)
  words = Slice (all_words, first, count_list)
)";
  return text;
}

// Sets `uniform` (float[count]): the upper 24 bits of each word times 2^-24, so in [0, 1).
constexpr const char* kUniform = R"(
  eight = Constant <value = uint64 {8}> ()
  upper = BitShift <direction = "RIGHT"> (words, eight)
  upper_float = Cast <to = 1> (upper)
  step = Constant <value = float {5.9604644775390625e-8}> ()
  uniform = Mul (upper_float, step)
)";

// y = x / (1 - ratio) where kept, 0 elsewhere; an element is kept when its uniform number is at least `ratio`.
constexpr const char* kDropout = R"(
  x_shape = Shape (x)
  uniform_view = Reshape <allowzero = 1> (uniform, x_shape)
  ratio_float = Cast <to = 1> (ratio)
  mask = GreaterOrEqual (uniform_view, ratio_float)
  ratio_like = CastLike (ratio, x)
  one_float = Constant <value = float {1}> ()
  one_like = CastLike (one_float, x)
  kept = Sub (one_like, ratio_like)
  larger = Div (x, kept)
  nothing_float = Constant <value = float {0}> ()
  zero_like = CastLike (nothing_float, x)
  y = Where (mask, larger, zero_like)
}
)";

// dx = dy / (1 - ratio) where kept, 0 elsewhere
constexpr const char* kDropoutGrad = R"(
DropoutGrad (dy, mask, ratio) => (dx)
{
  ratio_like = CastLike (ratio, dy)
  one_float = Constant <value = float {1}> ()
  one_like = CastLike (one_float, dy)
  kept = Sub (one_like, ratio_like)
  larger = Div (dy, kept)
  nothing_float = Constant <value = float {0}> ()
  zero_like = CastLike (nothing_float, dy)
  dx = Where (mask, larger, zero_like)
}
)";

// y = low + (high - low) u, of the given shape
constexpr const char* kRandomUniform = R"(
  low_float = Constant <value_float: float = @low> ()
  high_float = Constant <value_float: float = @high> ()
  width = Sub (high_float, low_float)
  scaled = Mul (uniform, width)
  moved = Add (scaled, low_float)
  y = Reshape <allowzero = 1> (moved, shape)
}
)";

// Box and Muller: elements 2i and 2i + 1 share u1 in (0, 1] and u2 in [0, 1); they are
//   mean + scale sqrt(-2 ln u1) cos(2π u2)  and the same with sin.
constexpr const char* kRandomNormal = R"(
  pair = Constant <value_ints = [-1, 2]> ()
  pairs = Reshape (uniform, pair)
  u2_index = Constant <value_ints = [1]> ()
  u1_index = Constant <value_ints = [0]> ()
  u = Gather <axis = 1> (pairs, u1_index)
  u2 = Gather <axis = 1> (pairs, u2_index)
  one_float = Constant <value = float {1}> ()
  u1 = Sub (one_float, u)
  log_u1 = Log (u1)
  minus_two = Constant <value = float {-2}> ()
  radius_squared = Mul (log_u1, minus_two)
  radius = Sqrt (radius_squared)
  turn = Constant <value = float {6.283185307179586}> ()
  angle = Mul (u2, turn)
  cosine = Cos (angle)
  sine = Sin (angle)
  x_part = Mul (radius, cosine)
  y_part = Mul (radius, sine)
  standard_pairs = Concat <axis = 1> (x_part, y_part)
  standard_all = Reshape (standard_pairs, flat)
  wanted_list = Reshape (wanted, flat)
  standard = Slice (standard_all, first, wanted_list)
  mean_float = Constant <value_float: float = @mean> ()
  scale_float = Constant <value_float: float = @scale> ()
  scaled = Mul (standard, scale_float)
  moved = Add (scaled, mean_float)
  y = Reshape <allowzero = 1> (moved, shape)
}
)";

FunctionRow random_function(const char* op, const std::string& signature, const std::string& count,
                            const std::string& rest) {
  const std::string text = concat(op, signature, " {\n", count, philox_words(), kUniform, rest);
  return {op, [text](const FunctionCall&) { return FunctionText{text, ""}; }};
}

}  // namespace

std::vector<FunctionRow> random_functions() {
  return {
      random_function("Dropout", " <stream: int = 0> (x, key, ratio) => (y, mask)", "  count = Size (x)\n", kDropout),
      function("DropoutGrad", kDropoutGrad),
      random_function("RandomUniform", " <stream: int = 0, low: float = 0.0, high: float = 1.0> (key, shape) => (y)",
                      "  count = ReduceProd <keepdims = 0> (shape)\n", kRandomUniform),
      random_function("RandomNormal", " <stream: int = 0, mean: float = 0.0, scale: float = 1.0> (key, shape) => (y)",
                      "  wanted = ReduceProd <keepdims = 0> (shape)\n"
                      "  odd_bit = Constant <value = int64 {1}> ()\n"
                      "  two = Constant <value = int64 {2}> ()\n"
                      "  wanted_up = Add (wanted, odd_bit)\n"
                      "  halves = Div (wanted_up, two)\n"
                      "  count = Mul (halves, two)\n",
                      kRandomNormal),
  };
}

}  // namespace onnx_train
