// Gradients through quantization, by the straight-through estimator (Bengio et al. 2013): rounding counts as the
// identity, and what is clipped has no gradient.
#include <limits>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/quantization/qdq.h"

namespace onnx_train {
namespace {

// Whether a scale is a tensor of the model, at most in another shape. One that is computed from data counts as a
// constant, as in PyTorch.
bool is_parameter(const Value* scale) {
  const Node* node = scale->producer();
  return !node || node->num_inputs() == 0 || (!node->input(0)->producer() && node->num_outputs() == 1);
}

// round(x / s) + z before it is clipped, in the rounding of the node: that of a node with the scale 1 and no bounds.
Var unclipped(Grad& g, Var scaled, Var zero_point) {
  const std::string rounding = g.node().attr("rounding", "");
  if (rounding.empty()) return g.b().op("Round", {scaled}) + zero_point;
  constexpr float kMost = std::numeric_limits<float>::max();
  const Attrs attrs = {
      {"low", -kMost}, {"high", kMost}, {"rounding", rounding}, {"parts", g.node().attr("parts", 1.0f)}};
  return call(g.b(), "FakeQuantizeInteger", {scaled, g.b().scalar(scaled.dtype(), 1), zero_point}, attrs) + zero_point;
}

Var is_within(Var q, double low, double high) {
  const Var is_above = q >= low;
  return logical_and(is_above, q <= high);
}

// y = s where x >= 0, else -s    dx = dy s, where |x| <= s if it is clipped;  ds = Σ ±dy
Gradients sign_gradient(Grad& g) {
  const Var x = g.x(0), scale = g.x(1), zero = g.b().scalar(x.dtype(), 0);
  Var dx = g.dy() * scale;
  if (g.node().attr("clipped", 0) != 0) dx = where(abs(x) <= scale, dx, zero);
  Var dscale;
  if (g.needs(1) && is_parameter(scale.value())) {
    const Var is_positive = x >= zero;
    dscale = where(is_positive, g.dy(), -g.dy());
  }
  return g.to({g.needs(0) ? dx : Var(), dscale});
}

// q = round(x / s) + z, y = (clip(q, low, high) - z) s
//   dx = dy where low <= q <= high, else 0
//   ds = Σ dy (clip(q, low, high) - z - x / s where low <= q <= high)    (LSQ, Esser et al. 2020)
Gradients fake_quantize_gradient(Grad& g) {
  const Var x = g.x(0), scale = g.x(1), zero_point = g.x(2);
  const auto low = static_cast<double>(g.node().attr("low", -128.0f));
  const auto high = static_cast<double>(g.node().attr("high", 127.0f));
  const Var scaled = x / scale, q = unclipped(g, scaled, zero_point);
  const Var inside = is_within(q, low, high), nothing = g.b().scalar(x.dtype(), 0);
  Var dscale;
  if (g.needs(1) && is_parameter(scale.value())) {
    const Var bounds[] = {g.b().scalar(x.dtype(), low), g.b().scalar(x.dtype(), high)};
    const Var steps = g.b().op("Clip", {q, bounds[0], bounds[1]}) - zero_point;
    dscale = g.dy() * (steps - where(inside, scaled, nothing));
  }
  return g.to({g.needs(0) ? where(inside, g.dy(), nothing) : Var(), dscale});
}

// The same with scale and zero point of the range [min, max]; everything is inside of an empty one.
Gradients activation_gradient(Grad& g) {
  const Var x = g.x(0), range = g.x(1);
  Builder& b = g.b();
  const auto low = static_cast<double>(g.node().attr("low", 0.0f));
  const auto high = static_cast<double>(g.node().attr("high", 255.0f));
  const Var zero = b.scalar(x.dtype(), 0), one = b.scalar(x.dtype(), 1);
  const auto end = [&](int64_t i) { return gather(range, b.constant(Tensor::scalar<int64_t>(i)), 0); };
  const Var least = min(end(0), zero), most = max(end(1), zero), step = (most - least) / (high - low);
  const Var is_some = step > 0.0, scale = where(is_some, step, one);
  const Var rounded = b.op("Round", {x / scale}), q = rounded + (low - b.op("Round", {least / scale}));
  const Var is_empty = logical_not(is_some), inside = logical_or(is_empty, is_within(q, low, high));
  return g.to(where(inside, g.dy(), zero));
}

// y = (x - z) s, x an integer    ds = Σ dy (x - z)
Gradients dequantize_gradient(Grad& g) {
  const Granularity granularity = *granularity_of(g.node());
  const int64_t rank = g.x(0).rank();
  Var steps = cast_like(g.x(0), g.dy());
  if (g.x(2).value()) steps = steps - broadcast_parameter(cast_like(g.x(2), g.dy()), granularity, rank);
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != granularity.axis) axes.push_back(i);
  }
  const Var sum = axes.empty() ? g.dy() * steps : reduce_sum(g.dy() * steps, axes, /*keepdims=*/false);
  return g.to({Var(), cast_like(reshape_like(sum, g.x(1)), g.x(1))});
}

std::string scales_of_blocks(const Node& node) {
  const auto granularity = granularity_of(node);
  if (granularity && granularity->block == 0 && node.input(0)->has_rank()) return "";
  return "a scale for each block has no gradient; leave it out of --train";
}

}  // namespace

std::vector<GradientRule> quantization_rules() {
  return {
      {"FakeQuantizeInteger", fake_quantize_gradient, Trait::kBroadcasts, kDomain},
      {"FakeQuantizeSign", sign_gradient, Trait::kBroadcasts, kDomain},
      {"FakeQuantizeActivation", activation_gradient, Trait::kNone, kDomain},
      // Nothing is clipped: the largest weight is the largest integer.
      {"FakeQuantizeWeight", [](Grad& g) { return g.to(g.dy()); }, Trait::kNone, kDomain},
      {"DequantizeLinear", dequantize_gradient, Trait::kNone, "", scales_of_blocks},
      // Importing leaves those that no DequantizeLinear with the same scale takes back.
      {"QuantizeLinear", [](Grad& g) { return g.to({}); }, Trait::kNone, "",
       [](const Node&) {
         return "its integers are not read by a DequantizeLinear with the same scale, at once or through Clips to "
                "constants, so no gradient goes through; export the model in the form QDQ, or freeze the weights "
                "before it";
       }},
  };
}

}  // namespace onnx_train
