// AdamW with moments of 8 bits (Dettmers et al. 2022): each block of 256 elements has a scale, the largest magnitude in
// it, and each element the place of a number in a map (dynamic_map.h).
#include "onnx_passes/functions/dynamic_map.h"
#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

class QuantizedMoments {
 public:
  explicit QuantizedMoments(UpdateBody* body) : f_(*body) {}

  // The moment, in blocks: the map's number at each place, times the block's scale.
  UpdateTerm stored(const std::string& places, const std::string& maxima, const DynamicMap& map) {
    std::string digits;
    for (const double x : map.numbers()) digits += concat(digits.empty() ? "" : ", ", text(x));
    const UpdateTerm table = f_.constant(concat("map_of_", places), concat("double[256] {", digits, "}"));
    const UpdateTerm indices = f_.op("Cast", {f_.slot(places)}, "to = 6");
    return f_.op("Gather", {f_.op("CastLike", {table, f_.weight()}), indices}) * f_.slot(maxima);
  }

  void store(const std::string& places, const std::string& maxima, const DynamicMap& map, const UpdateTerm& moment) {
    const UpdateTerm magnitude = abs(moment), last_axis = f_.constant("last_axis", "int64[1] {-1}");
    const UpdateTerm most = f_.next(maxima, f_.op("ReduceMax", {magnitude, last_axis}, "keepdims = 1"));
    UpdateTerm place = nearest(magnitude / where_above(most, 0, most, f_.number(1)), map);
    if (map.has_signs) {
      const UpdateTerm is_negative = f_.op("Less", {moment, f_.number(0)});
      const UpdateTerm below = kZeroPlace - min(place, f_.as_tensor(f_.number(kZeroPlace)));
      place = f_.op("Where", {is_negative, below, kZeroPlace + place});
    }
    f_.next(places, f_.op("Cast", {place}, "to = 2"));
  }

 private:
  static std::string text(double x) {
    const std::string digits = number_text(x);
    return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
  }

  // The place of the magnitude next to x, of [0, 1]. In decade j it is ⌊x·slope + 8/9·2ʲ⌋, bounded by its ends, where
  // x·slope - 2ʲ/9 counts the parts of [0.1, 1]·10^(j - last).
  UpdateTerm nearest(const UpdateTerm& x, const DynamicMap& map) {
    const auto slope_of = [&](int decade) { return f_.number((1 << decade) / (0.9 * map.scale(decade))); };
    UpdateTerm slope = slope_of(map.first), count = f_.number(1 << map.first);
    for (int decade = map.first + 1; decade <= map.last; ++decade) {
      const double border = (map.largest(decade - 1) + map.number(decade, 0)) / 2;
      const UpdateTerm above = f_.op("Greater", {x, f_.number(border)});
      slope = f_.op("Where", {above, slope_of(decade), slope});
      count = f_.op("Where", {above, f_.number(1 << decade), count});
    }
    const UpdateTerm part = x * slope + count * f_.number(8.0 / 9);
    UpdateTerm place = f_.op("Floor", {min(max(part, count), 2 * count - f_.number(1))});
    if (map.first > 0) place = place - f_.number(map.first);
    const double least_of_one = (map.largest(map.last) + 1) / 2;
    place = where_above(x, least_of_one, f_.number((2 << map.last) - map.first), place);
    return where_above(x, map.least() / 2, place, f_.number(0));
  }

  UpdateBody& f_;
};

// m' = β₁m + (1-β₁)g      v' = β₂v + (1-β₂)g²      w' = (1 - lr·λ)w - lr/(1-β₁ᵗ) · m' / (√v'/√(1-β₂ᵗ) + ε)
// m' and v' are rounded as they are stored, after w' is computed.
FunctionText adamw_8bit(const FunctionCall& call) {
  UpdateBody f("AdamW8bit", {"state1", "absmax1", "state2", "absmax2"}, call);
  QuantizedMoments moments(&f);
  const int64_t size = num_elements(f.weight_type().shape());
  const int64_t rest = (kQuantizedBlock - size % kQuantizedBlock) % kQuantizedBlock;  // that fills the last block
  const UpdateTerm flat = f.constant("flat", "int64[1] {-1}");
  UpdateTerm g = f.scaled_gradient();
  if (rest > 0) {
    f.depends_on(concat("and", rest));
    g = f.op("Pad", {f.op("Reshape", {g, flat}), f.constant("pads", concat("int64[2] {0, ", rest, "}"))});
  }
  g = f.op("Reshape", {g, f.constant("blocks", concat("int64[2] {-1, ", kQuantizedBlock, "}"))});
  const UpdateTerm beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const UpdateTerm m = moments.stored("state1", "absmax1", kSignedMap) * beta1 + g * (1 - beta1);
  const UpdateTerm v = moments.stored("state2", "absmax2", kUnsignedMap) * beta2 + g * g * (1 - beta2);
  UpdateTerm change =
      m / (sqrt(v) / sqrt(1 - pow(beta2, t)) + f.attribute("epsilon")) * (f.rate() / (1 - pow(beta1, t)));
  if (rest > 0) {
    const UpdateTerm zero = f.constant("begin", "int64[1] {0}"),
                     end = f.constant("end", concat("int64[1] {-", rest, "}"));
    change = f.op("Slice", {f.op("Reshape", {change, flat}), zero, end});
  }
  change = f.op("Reshape", {change, f.shape_of_weight()});
  f.next("w", f.decayed_weight() - change);
  moments.store("state1", "absmax1", kSignedMap, m);
  moments.store("state2", "absmax2", kUnsignedMap, v);
  return f.text();
}

}  // namespace

std::vector<FunctionRow> quantized_update_functions() { return {{"AdamW8bit", adamw_8bit}}; }

}  // namespace onnx_train
