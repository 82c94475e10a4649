// Fake quantization: floats that are rounded to what integers of few bits can say (onnx_passes/quantization).
#include <string_view>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// y = (clip(round(x / scale) + zero_point, low, high) - zero_point) scale: what QuantizeLinear and DequantizeLinear
// give, as floats. Scale and zero point, a whole number, broadcast to x.
constexpr const char* kFakeQuantizeInteger = R"(
FakeQuantizeInteger <low: float = -128, high: float = 127> (x, scale, zero_point) => (y)
{
  low_float = Constant <value_float: float = @low> ()
  high_float = Constant <value_float: float = @high> ()
  least = CastLike (low_float, x)
  most = CastLike (high_float, x)
  scaled = Div (x, scale)
  rounded = Round (scaled)
  shifted = Add (rounded, zero_point)
  quantized = Clip (shifted, least, most)
  steps = Sub (quantized, zero_point)
  y = Mul (steps, scale)
})";

// The same with another rounding, of x / scale + zero_point at once, to a multiple of 1 / parts first.
constexpr const char* kFakeQuantizeRounded = R"(
FakeQuantizeInteger <low: float = -128, high: float = 127, rounding: string = "half_even", parts: float = 1>
  (x, scale, zero_point) => (y)
{
  low_float = Constant <value_float: float = @low> ()
  high_float = Constant <value_float: float = @high> ()
  least = CastLike (low_float, x)
  most = CastLike (high_float, x)
  scaled = Div (x, scale)
  shifted = Add (scaled, zero_point)
)";
constexpr const char* kOfParts = R"(
  parts_float = Constant <value_float: float = @parts> ()
  count = CastLike (parts_float, x)
  counted = Mul (shifted, count)
  whole_parts = Round (counted)
  u = Div (whole_parts, count)
)";
constexpr const char* kOfSize = R"(
  half_float = Constant <value: tensor = float {0.5}> ()
  half = CastLike (half_float, x)
  sign = Sign (u)
  size = Abs (u)
)";
constexpr const char* kAfterRounding = R"(
  quantized = Clip (rounded, least, most)
  steps = Sub (quantized, zero_point)
  y = Mul (steps, scale)
})";

// The lines that round u, by the name of the rounding.
constexpr std::pair<const char*, const char*> kRoundings[] = {
    {"half_even", "  rounded = Round (u)"},
    {"floor", "  rounded = Floor (u)"},
    {"ceil", "  rounded = Ceil (u)"},
    {"up", "  whole = Ceil (size)\n  rounded = Mul (sign, whole)"},
    {"down", "  whole = Floor (size)\n  rounded = Mul (sign, whole)"},
    {"half_up", "  moved = Add (size, half)\n  whole = Floor (moved)\n  rounded = Mul (sign, whole)"},
    {"half_down", "  moved = Sub (size, half)\n  whole = Ceil (moved)\n  rounded = Mul (sign, whole)"}};

// The scale with the sign of x, that of 0 too; `clipped` says which x have a gradient.
constexpr const char* kFakeQuantizeSign = R"(
FakeQuantizeSign <clipped: int = 0> (x, scale) => (y)
{
  zero_float = Constant <value: tensor = float {0}> ()
  zero = CastLike (zero_float, x)
  positive = GreaterOrEqual (x, zero)
  opposite = Neg (scale)
  y = Where (positive, scale, opposite)
})";

// w, rounded to integers of the range: scale = max |w| / high, the largest over `axes`. Zeros have the scale 1.
constexpr const char* kFakeQuantizeWeight = R"(
FakeQuantizeWeight <axes, low: float = -127, high: float = 127> (w) => (y)
{
  zero_float = Constant <value: tensor = float {0}> ()
  one_float = Constant <value: tensor = float {1}> ()
  high_float = Constant <value_float: float = @high> ()
  zero = CastLike (zero_float, w)
  one = CastLike (one_float, w)
  most = CastLike (high_float, w)
  over = Constant <value_ints: ints = @axes> ()
  magnitude = Abs (w)
  largest = ReduceMax <keepdims = 1> (magnitude, over)
  step = Div (largest, most)
  is_some = Greater (step, zero)
  scale = Where (is_some, step, one)
  y = onnx_train.FakeQuantizeInteger <low: float = @low, high: float = @high> (w, scale, zero)
})";

// x, rounded to integers of the range: range = [min, max] and 0 between them, with the weight of what a moving average
// has seen as a third number (onnx_passes/adapt/qat.h). x itself before anything is observed, where the range is
// empty. `averaging` says how steps observe it; 0: min and max of all.
constexpr const char* kFakeQuantizeActivation = R"(
FakeQuantizeActivation <low: float = 0, high: float = 255, averaging: float = 0.01> (x, range) => (y)
{
  zero_float = Constant <value: tensor = float {0}> ()
  one_float = Constant <value: tensor = float {1}> ()
  low_float = Constant <value_float: float = @low> ()
  high_float = Constant <value_float: float = @high> ()
  zero = CastLike (zero_float, x)
  one = CastLike (one_float, x)
  lowest = CastLike (low_float, x)
  highest = CastLike (high_float, x)
  first = Constant <value: tensor = int64 {0}> ()
  second = Constant <value: tensor = int64 {1}> ()
  seen_least = Gather (range, first)
  seen_most = Gather (range, second)
  least = Min (seen_least, zero)
  most = Max (seen_most, zero)
  span = Sub (most, least)
  levels = Sub (highest, lowest)
  step = Div (span, levels)
  is_some = Greater (step, zero)
  scale = Where (is_some, step, one)
  steps_below = Div (least, scale)
  rounded_below = Round (steps_below)
  zero_point = Sub (lowest, rounded_below)
  rounded = onnx_train.FakeQuantizeInteger <low: float = @low, high: float = @high> (x, scale, zero_point)
  y = Where (is_some, rounded, x)
})";

// Integers of 4 bits, two in each byte along the last axis, the first in the low half: q [.., K] of packed [.., K / 2].
constexpr const char* kUnpackInt4 = R"(
UnpackInt4 (packed) => (q)
{
  fifteen = Constant <value: tensor = uint8 {15}> ()
  four = Constant <value: tensor = uint8 {4}> ()
  sign = Constant <value: tensor = uint8 {8}> ()
  eight = Constant <value: tensor = int32 {8}> ()
  last = Constant <value: tensor = int64[1] {-1}> ()
  low = BitwiseAnd (packed, fifteen)
  high = BitShift <direction = "RIGHT"> (packed, four)
  low_column = Unsqueeze (low, last)
  high_column = Unsqueeze (high, last)
  pairs = Concat <axis = -1> (low_column, high_column)
  rows = Shape <start = 0, end = -1> (packed)
  shape = Concat <axis = 0> (rows, last)
  codes = Reshape (pairs, shape)
  shifted = BitwiseXor (codes, sign)
  wide = Cast <to = 6> (shifted)
  centered = Sub (wide, eight)
  q = Cast <to = 3> (centered)
})";

// The body that the attributes `rounding` and `parts` of a call say.
FunctionText fake_quantize_integer(const FunctionCall& call) {
  std::string rounding;
  bool has_parts = false;
  for (const Attr& attr : call.attrs) {
    if (attr.name == "rounding") rounding = std::get<std::string>(attr.value);
    if (attr.name == "parts") has_parts = std::get<float>(attr.value) != 1;
  }
  if (rounding.empty()) return {kFakeQuantizeInteger, ""};
  std::string text = concat(kFakeQuantizeRounded, has_parts ? kOfParts : "  u = Identity (shifted)\n");
  for (const auto& [name, lines] : kRoundings) {
    if (rounding != name) continue;
    if (std::string_view(lines).find("size") != std::string_view::npos) text += kOfSize;
    return {concat(text, lines, kAfterRounding), concat(name, has_parts ? "_parts" : "")};
  }
  fail("onnx_train.FakeQuantizeInteger has no rounding '", rounding, "'");
}

// A function whose body calls FakeQuantizeInteger.
FunctionRow over_integers(const char* op, const char* text) {
  return {op, [text](const FunctionCall&) { return FunctionText{text, "", "FakeQuantizeInteger"}; }};
}

}  // namespace

std::vector<FunctionRow> quantization_functions() {
  return {function("UnpackInt4", kUnpackInt4),
          {"FakeQuantizeInteger", fake_quantize_integer},
          function("FakeQuantizeSign", kFakeQuantizeSign),
          over_integers("FakeQuantizeWeight", kFakeQuantizeWeight),
          over_integers("FakeQuantizeActivation", kFakeQuantizeActivation)};
}

}  // namespace onnx_train
