// AdamW with moments of 8 bits (Dettmers et al. 2022): each block of 256 elements has a scale, the largest magnitude in
// it, and each element the place of a number in a map (dynamic_map.h).
#include "onnx_passes/functions/dynamic_map.h"
#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

class QuantizedMoments {
 public:
  explicit QuantizedMoments(UpdateBody* body) : f_(*body) {}

  // The moment, in blocks: the map's number at each place, times the block's scale.
  Term stored(const std::string& places, const std::string& maxima, const DynamicMap& map) {
    const Term table = cast_like(f_.constant(DType::kDouble, map.numbers()), f_.weight());
    return gather(table, cast(f_.slot(places), DType::kInt32)) * f_.slot(maxima);
  }

  void store(const std::string& places, const std::string& maxima, const DynamicMap& map, const Term& moment) {
    const Term magnitude = abs(moment), most = f_.next(maxima, reduce_max(magnitude, {-1}));
    Term place = nearest(magnitude / where(most > 0, most, 1), map);
    if (map.has_signs) {
      place = where(moment < 0, kZeroPlace - min(place, kZeroPlace), kZeroPlace + place);
    }
    f_.next(places, cast(place, DType::kUint8));
  }

 private:
  // The place of the magnitude next to x, of [0, 1]. In decade j it is ⌊x·slope + 8/9·2ʲ⌋, bounded by its ends, where
  // x·slope - 2ʲ/9 counts the parts of [0.1, 1]·10^(j - last).
  Term nearest(const Term& x, const DynamicMap& map) {
    const auto slope_of = [&](int decade) { return f_.tensor((1 << decade) / (0.9 * map.scale(decade))); };
    Term slope = slope_of(map.first), count = f_.tensor(1 << map.first);
    for (int decade = map.first + 1; decade <= map.last; ++decade) {
      const double border = (map.largest(decade - 1) + map.number(decade, 0)) / 2;
      slope = where(x > border, slope_of(decade), slope);
      count = where(x > border, 1 << decade, count);
    }
    const Term part = x * slope + count * (8.0 / 9);
    Term place = floor(min(max(part, count), 2 * count - 1));
    if (map.first > 0) place = place - map.first;
    const double least_of_one = (map.largest(map.last) + 1) / 2;
    place = where(x > least_of_one, (2 << map.last) - map.first, place);
    return where(x > map.least() / 2, place, 0);
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
  Term g = f.scaled_gradient();
  if (rest > 0) {
    f.depends_on(concat("and", rest));
    g = f.op("Pad", {reshape(g, {-1}), {0, rest}});
  }
  g = reshape(g, {-1, kQuantizedBlock});
  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const Term m = moments.stored("state1", "absmax1", kSignedMap) * beta1 + g * (1 - beta1);
  const Term v = moments.stored("state2", "absmax2", kUnsignedMap) * beta2 + g * g * (1 - beta2);
  Term change = m / (sqrt(v) / sqrt(1 - pow(beta2, t)) + f.attribute("epsilon")) * (f.rate() / (1 - pow(beta1, t)));
  if (rest > 0) change = slice(reshape(change, {-1}), {0}, {-rest});
  f.next("w", f.decayed_weight() - f.in_shape_of_weight(change));
  moments.store("state1", "absmax1", kSignedMap, m);
  moments.store("state2", "absmax2", kUnsignedMap, v);
  return f.text();
}

}  // namespace

std::vector<FunctionRow> quantized_update_functions() { return {{"AdamW8bit", adamw_8bit}}; }

}  // namespace onnx_train
