// AdamW with moments of 8 bits (Dettmers et al. 2022): each block of 256 elements has a scale, the largest magnitude in
// it, and each element the place in a map of 256 numbers, bitsandbytes' "dynamic" one.
//
// The map has decades. Decade j = first..last has 2ʲ numbers, the middles of as many equal parts of
// [0.1, 1]·10^(j - last). Before the first decade is 0, after the last one 1. Moments with signs have the decades 0 to
// 6 on both sides of zero (without -1), others 1 to 7.
#include <cmath>

#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/expression.h"
#include "onnx_passes/training/optimizer_table.h"

namespace onnx_train {
namespace {

struct DynamicMap {
  int first, last;
  bool has_signs;

  double scale(int decade) const { return std::pow(10.0, decade - last); }
  // The numbers of a decade, from 0 on.
  double number(int decade, int i) const { return scale(decade) * (0.1 + 0.9 * (i + 0.5) / (1 << decade)); }
  double least() const { return number(first, 0); }
  double largest(int decade) const { return number(decade, (1 << decade) - 1); }

  std::vector<double> magnitudes() const {
    std::vector<double> all = {0};
    for (int decade = first; decade <= last; ++decade) {
      for (int i = 0; i < 1 << decade; ++i) all.push_back(number(decade, i));
    }
    all.push_back(1);
    return all;
  }
  // All 256, ascending.
  std::vector<double> numbers() const {
    std::vector<double> all = magnitudes();
    if (!has_signs) return all;
    std::vector<double> both;
    for (size_t i = all.size() - 2; i > 0; --i) both.push_back(-all[i]);
    both.insert(both.end(), all.begin(), all.end());
    return both;
  }
};
constexpr DynamicMap kSigned = {0, 6, true}, kUnsigned = {1, 7, false};
constexpr double kZeroPlace = 127;  // of the map with signs

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
  const UpdateTerm m = moments.stored("state1", "absmax1", kSigned) * beta1 + g * (1 - beta1);
  const UpdateTerm v = moments.stored("state2", "absmax2", kUnsigned) * beta2 + g * g * (1 - beta2);
  UpdateTerm change =
      m / (sqrt(v) / sqrt(1 - pow(beta2, t)) + f.attribute("epsilon")) * (f.rate() / (1 - pow(beta1, t)));
  if (rest > 0) {
    const UpdateTerm zero = f.constant("begin", "int64[1] {0}"),
                     end = f.constant("end", concat("int64[1] {-", rest, "}"));
    change = f.op("Slice", {f.op("Reshape", {change, flat}), zero, end});
  }
  change = f.op("Reshape", {change, f.shape_of_weight()});
  f.next("w", f.decayed_weight() - change);
  moments.store("state1", "absmax1", kSigned, m);
  moments.store("state2", "absmax2", kUnsigned, v);
  return f.text();
}

}  // namespace

std::vector<FunctionRow> quantized_update_functions() { return {{"AdamW8bit", adamw_8bit}}; }

}  // namespace onnx_train
