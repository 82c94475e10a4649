// Fake quantization: floats that are rounded to what integers of few bits can say (onnx_passes/quantization).
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// u rounded, by the name of the rounding.
Term rounded(const std::string& rounding, const Term& u) {
  if (rounding == "half_even") return round(u);
  if (rounding == "floor") return floor(u);
  if (rounding == "ceil") return ceil(u);
  const Term size = abs(u);
  if (rounding == "up") return sign(u) * ceil(size);
  if (rounding == "down") return sign(u) * floor(size);
  if (rounding == "half_up") return sign(u) * floor(size + 0.5);
  if (rounding == "half_down") return sign(u) * ceil(size - 0.5);
  fail("onnx_train.FakeQuantizeInteger has no rounding '", rounding, "'");
}

// y = (clip(round(x / scale) + zero_point, low, high) - zero_point) scale: what QuantizeLinear and DequantizeLinear
// give, as floats. Scale and zero point, a whole number, broadcast to x. With an attribute `rounding`, x / scale +
// zero_point is rounded so at once, to a multiple of 1 / parts first.
FunctionText fake_quantize_integer(const FunctionCall& call) {
  const std::string rounding = call.text("rounding");
  const Attr* parts = call.find("parts");
  const bool has_parts = parts && std::get<float>(parts->value) != 1;
  Body f(concat("FakeQuantizeInteger <low: float = -128, high: float = 127",
                rounding.empty() ? "" : ", rounding: string = \"half_even\", parts: float = 1",
                "> (x, scale, zero_point) => (y)"),
         call);
  const Term x = f.input("x"), scale = f.input("scale"), zero_point = f.input("zero_point");
  Term whole = x / scale;
  if (rounding.empty()) {
    whole = round(whole) + zero_point;
  } else {
    whole = whole + zero_point;
    f.depends_on(rounding);
    if (has_parts) {
      f.depends_on("parts");
      whole = round(whole * f.attribute("parts")) / f.attribute("parts");
    }
    whole = rounded(rounding, whole);
  }
  return f.text(
      {(f.op("Clip", {whole, f.as(f.attribute("low"), x), f.as(f.attribute("high"), x)}) - zero_point) * scale});
}

// x rounded to integers of the range.
Term fake_quantized(Body& f, const Term& x, const Term& scale, const Term& zero_point) {
  return f.apply("FakeQuantizeInteger", {x, scale, zero_point}, "low: float = @low, high: float = @high");
}

// w, rounded to integers of the range: scale = max |w| / high, the largest over `axes`. Zeros have the scale 1.
Term fake_quantize_weight(Body& f, const Term& w) {
  const Term axes = f.op("Constant", {}, "value_ints: ints = @axes");
  const Term step = reduce_max(abs(w), axes) / f.attribute("high");
  return fake_quantized(f, w, where(step > 0, step, 1), f.as(0, w));
}

// x, rounded to integers of the range: range = [min, max] and 0 between them, with the weight of what a moving average
// has seen as a third number (onnx_passes/adapt/qat.h). x itself before anything is observed, where the range is
// empty. `averaging` says how steps observe it; 0: min and max of all.
Term fake_quantize_activation(Body& f, const Term& x, const Term& range) {
  const Term zero = f.as(0, x), low = f.as(f.attribute("low"), x), high = f.as(f.attribute("high"), x);
  const Term least = min(gather(range, 0), zero), most = max(gather(range, 1), zero);
  const Term step = (most - least) / (high - low), is_some = step > zero;
  const Term scale = where(is_some, step, f.as(1, x));
  return where(is_some, fake_quantized(f, x, scale, low - round(least / scale)), x);
}

// Integers of 4 bits, two in each byte along the last axis, the first in the low half: q [.., K] of packed [.., K / 2].
Term unpack_int4(Body& f, const Term& packed) {
  const auto byte = [&](int value) { return f.constant(DType::kUint8, value); };
  const Term low = f.op("BitwiseAnd", {packed, byte(15)});
  const Term high = f.op("BitShift", {packed, byte(4)}, "direction = \"RIGHT\"");
  const Term pairs = concat({unsqueeze(low, {-1}), unsqueeze(high, {-1})}, -1);
  const Term codes = f.op("Reshape", {pairs, concat({shape(packed, 0, -1), {-1}}, 0)});
  return cast(cast(f.op("BitwiseXor", {codes, byte(8)}), DType::kInt32) - 8, DType::kInt8);
}

}  // namespace

std::vector<FunctionRow> quantization_functions() {
  return {
      function("UnpackInt4 (packed) => (q)", unpack_int4),
      {"FakeQuantizeInteger", fake_quantize_integer},
      // The scale with the sign of x, that of 0 too; `clipped` says which x have a gradient.
      function("FakeQuantizeSign <clipped: int = 0> (x, scale) => (y)",
               [](Term x, Term scale) { return where(x >= 0, scale, -scale); }),
      function("FakeQuantizeWeight <axes, low: float = -127, high: float = 127> (w) => (y)", fake_quantize_weight),
      function("FakeQuantizeActivation <low: float = 0, high: float = 255, averaging: float = 0.01> (x, range) => (y)",
               fake_quantize_activation),
  };
}

}  // namespace onnx_train
