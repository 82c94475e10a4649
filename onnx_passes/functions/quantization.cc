// Fake quantization: floats that are rounded to what integers of few bits can say (onnx_passes/quantization).
#include "onnx_passes/functions/functions.h"

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

// x, rounded to integers of the range: range = [min, max] and 0 between them (onnx_passes/quantization/qat.h). x itself
// before anything is observed, where the range is empty. `averaging` says how steps observe it; 0: min and max of all.
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

// A function whose body calls FakeQuantizeInteger.
FunctionRow over_integers(const char* op, const char* text) {
  return {op, [text](const FunctionCall&) { return FunctionText{text, "", "FakeQuantizeInteger"}; }};
}

}  // namespace

std::vector<FunctionRow> quantization_functions() {
  return {function("UnpackInt4", kUnpackInt4), function("FakeQuantizeInteger", kFakeQuantizeInteger),
          over_integers("FakeQuantizeWeight", kFakeQuantizeWeight),
          over_integers("FakeQuantizeActivation", kFakeQuantizeActivation)};
}

}  // namespace onnx_train
