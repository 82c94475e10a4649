// Rounding to few bits as QONNX defines it (the custom operators of fastmachinelearning/qonnx), which Brevitas writes:
// fake quantization with a range of its own (functions/quantization.cc).
#include <algorithm>
#include <cmath>
#include <limits>

#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr const char* kDomains[] = {"qonnx.custom_op.general", "onnx.brevitas"};

// Their names, and ours.
constexpr std::pair<const char*, const char*> kRoundingModes[] = {
    {"ROUND", "half_even"}, {"HALF_EVEN", "half_even"}, {"FLOOR", "floor"},     {"CEIL", "ceil"},
    {"UP", "up"},           {"DOWN", "down"},           {"HALF_UP", "half_up"}, {"HALF_DOWN", "half_down"}};

std::string rounding_of(const Foreign& f, const char* otherwise) {
  const std::string given = f.node().attr("rounding_mode", otherwise);
  std::string name = given;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const auto& [theirs, ours] : kRoundingModes) {
    if (name == theirs) return ours;
  }
  f.refuse(concat("its rounding_mode is '", given,
                  "'; it has ROUND, FLOOR, CEIL, UP, DOWN, HALF_UP and HALF_DOWN here: export it with one of these"));
}

// An input that is one whole constant from `least` to 32.
int64_t bits(const Foreign& f, int i, int64_t least, const char* what) {
  constexpr double kMost = 32;
  f.x(i);
  const Tensor known = constant_of(f.node().input(i));
  if (known.size() != 1)
    f.refuse(concat("its ", what, " '", f.node().input(i)->name(),
                    "' is not one constant, so that its range is not known; export the model with fixed bit widths"));
  const double number = known.at(0);
  if (!(number >= static_cast<double>(least) && number <= kMost) || number != std::floor(number))
    f.refuse(concat("its ", what, " is ", number, "; take a whole number of bits from ", least, " to 32"));
  return static_cast<int64_t>(number);
}

// The bounds of the integers.
Attrs range_of(const Foreign& f, int64_t width, int64_t narrow_by_default) {
  const bool is_signed = f.node().attr("signed", 1) != 0, narrow = f.node().attr("narrow", narrow_by_default) != 0;
  const double steps = std::ldexp(1.0, static_cast<int>(is_signed ? width - 1 : width));
  const double low = is_signed ? -steps + (narrow ? 1 : 0) : 0;
  const double high = steps - (narrow && !is_signed ? 2 : 1);
  return {{"low", static_cast<float>(low)}, {"high", static_cast<float>(high)}};
}

// y = (clip(round(x / scale + zero), low, high) - zero) scale. QuantizeLinear adds the zero point after it has rounded:
// to even numbers, that is the same if it is even.
Results quant(Foreign& f) {
  const std::string rounding = rounding_of(f, "ROUND");
  const int64_t width = bits(f, 3, 1, "bit width");
  const Tensor zero = constant_of(f.x(2).value());
  if (width == 1 && f.node().attr("signed", 1) != 0) {
    if (!zero.holds_only(0)) f.refuse("it has one bit with a sign and a zero point; export it as BipolarQuant");
    return f.to(call(f.b(), "FakeQuantizeSign", {f.x(0), f.x(1)}));
  }
  Attrs attrs = range_of(f, width, 0);
  bool is_even = !zero.empty();
  for (int64_t i = 0; i < zero.size(); ++i) is_even = is_even && std::fmod(zero.at(i), 2) == 0;
  if (!is_even || rounding != "half_even") attrs.emplace_back("rounding", rounding);
  return f.to(call(f.b(), "FakeQuantizeInteger", {f.x(0), f.x(1), f.x(2)}, attrs));
}

// y = scale where x >= 0, else -scale. Brevitas passes the gradient of a weight on, dx = dy scale (BinaryQuant), and
// that of an activation where |x| <= scale (ClampedBinaryQuant); both are one operator in its files.
Results bipolar(Foreign& f) {
  const Value* source = f.x(0).value();
  constexpr int kMaxMoves = 8;  // between a weight and its use
  for (int i = 0; i < kMaxMoves && source->producer() && source->producer()->num_inputs() > 0; ++i) {
    const Node& node = *source->producer();
    if (!node.is("Transpose") && !node.is("Reshape") && !node.is("Identity")) break;
    source = node.input(0);
  }
  const bool is_weight = source->is_initializer() || !constant_of(source).empty();
  return f.to(call(f.b(), "FakeQuantizeSign", {f.x(0), f.x(1)}, {{"clipped", is_weight ? 0 : 1}}));
}

// Integers that are divided by 2^k and rounded again. With q = round(x / scale + zero):
//   y = (round'(q / 2^k) - zero) scale    k = bits before - bits after
Results trunc_by_bits(Foreign& f, const std::string& rounding) {
  if (!constant_of(f.x(2).value()).holds_only(0))
    f.refuse("it has a zero point, which version 1 does not divide; convert it to version 2");
  const int64_t before = bits(f, 3, 1, "input bit width"), after = bits(f, 4, 1, "output bit width");
  if (after > before) f.refuse(concat("its output has ", after, " bits and its input ", before));
  Builder& b = f.b();
  const double parts = std::ldexp(1.0, static_cast<int>(before - after));
  constexpr float kMost = std::numeric_limits<float>::max();
  const Attrs attrs = {{"low", -kMost}, {"high", kMost}, {"rounding", rounding}, {"parts", static_cast<float>(parts)}};
  const Tensor scale = constant_of(f.x(1).value());
  const Var coarse = scale.empty() ? f.x(1) * parts : [&] {
    Tensor times(scale.dtype(), scale.shape());
    for (int64_t i = 0; i < times.size(); ++i) times.set(i, scale.at(i) * parts);
    return b.constant(times);
  }();
  return f.to(call(b, "FakeQuantizeInteger", {f.x(0), coarse, f.x(2)}, attrs) * (1 / parts));
}

// The same in version 2 of the operator:
//   y = (clip(round'(q / 2^k)) - zero / 2^k) out_scale    2^k = out_scale / scale
Results trunc_by_scales(Foreign& f, const std::string& rounding) {
  bits(f, 3, 1, "input bit width");
  Attrs attrs = range_of(f, bits(f, 5, 1, "output bit width"), 0);
  const Tensor scale = constant_of(f.x(1).value()), zero = constant_of(f.x(2).value());
  const Tensor out = constant_of(f.x(4).value());
  if (scale.size() == 0 || out.size() == 0 || zero.size() != 1)
    f.refuse("its scales and its zero point are not constants; export the model with fixed scales");
  const double parts = std::exp2(std::round(std::log2(out.at(0) / scale.at(0))));
  for (int64_t i = 0; i < std::max(scale.size(), out.size()); ++i) {
    const double ratio = out.at(i % out.size()) / scale.at(i % scale.size());
    constexpr double kRounding = 1e-5;
    if (!(parts >= 1 && std::fabs(ratio / parts - 1) < kRounding))
      f.refuse("its scales are not a power of two apart; export the model with such scales");
  }
  attrs.emplace_back("rounding", rounding);
  attrs.emplace_back("parts", static_cast<float>(parts));
  const Var divided = f.b().scalar(f.x(0).dtype(), zero.at(0) / parts);
  return f.to(call(f.b(), "FakeQuantizeInteger", {f.x(0), f.x(4), divided}, attrs));
}

Results trunc(Foreign& f) {
  const std::string rounding = rounding_of(f, "FLOOR");
  const int inputs = f.node().num_inputs();
  if (inputs == 5) return trunc_by_bits(f, rounding);
  if (inputs == 6) return trunc_by_scales(f, rounding);
  f.refuse(concat("it has ", inputs, " inputs; versions 1 and 2 of QONNX's operators have 5 and 6: convert it"));
}

}  // namespace

std::vector<ForeignRow> qonnx_foreign() {
  std::vector<ForeignRow> rows;
  for (const char* domain : kDomains) {
    rows.push_back({"Quant", quant, domain});
    rows.push_back({"IntQuant", quant, domain});
    rows.push_back({"BipolarQuant", bipolar, domain});
    rows.push_back({"Trunc", trunc, domain});
    rows.push_back({"FloatQuant", nullptr, domain,
                    "it rounds to floats of few bits, for which there is no form here; export the model with integer "
                    "quantizers"});
    rows.push_back({"MultiThreshold", nullptr, domain,
                    "its steps have no gradient; take the model before FINN has streamlined it"});
  }
  return rows;
}

}  // namespace onnx_train
