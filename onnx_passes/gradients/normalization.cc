#include "onnx_passes/foreign/missing.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr float kEpsilon = 1e-5f;  // ONNX's default for all of them

// ---- LayerNormalization, RMSNormalization: rows are what lies behind `axis`

int64_t row_axis(const Grad& g) { return normalize_axis(g.node().attr("axis", -1), g.x(0).rank()); }

// The scale in the full shape of the normalized axes; itself where the types show that it has it.
Var full_scale(const Grad& g, int64_t axis) {
  const Var x = g.x(0), scale = g.x(1);
  const auto& dims = x.type().dims;
  bool full = scale.type().has_rank() && scale.rank() == x.rank() - axis;
  for (int64_t i = axis; full && i < x.rank(); ++i) {
    const Dim& d = (*scale.type().dims)[static_cast<size_t>(i - axis)];
    full = d.same((*dims)[static_cast<size_t>(i)]);
  }
  return full ? scale : expand(scale, slice(shape(x), axis, x.rank(), 0));
}

std::string scale_obstacle(const Node& node) {
  const Value* x = node.input(0);
  if (!x->has_rank()) return "the rank of its input is not known; " + unknown_rank_advice(*x);
  const int64_t rows = x->rank() - normalize_axis(node.attr("axis", -1), x->rank());
  for (int i = 1; i < node.num_inputs(); ++i) {
    const Value* v = node.input(i);
    if (v && v->has_rank() && v->rank() > rows)
      return concat("input ", i, " has more dimensions than are normalized; move it into a Mul or Add behind the node");
  }
  return "";
}

Var plus(Var a, Var b) { return a && b ? a + b : a ? a : b; }

// How many elements of x make one of y, in x's type.
Var elements_per(Var y, Var x) {
  const Var all = cast_like(size(x), x);
  return all / cast_like(size(y), x);
}

// What the outputs Mean and InvStdDev (of the type that stash_type says) add to dx, with n elements in a row:
//   d mean / dx = 1/n,   d inv_std / dx = -inv_std³ (x - mean) / n
Var statistics_gradient(const Grad& g, int64_t axis) {
  const Var dmean = g.num_outputs() > 1 ? g.dy(1) : Var(), dinv_std = g.num_outputs() > 2 ? g.dy(2) : Var();
  if (!dmean && !dinv_std) return {};
  const Var x = g.x(0);
  std::vector<int64_t> axes;
  for (int64_t i = axis; i < x.rank(); ++i) axes.push_back(i);
  const Var mean = reduce_mean(x, axes);
  const Var n = elements_per(mean, x);
  Var dx;
  if (dmean) dx = expand_like(cast_like(dmean, x) / n, x);
  if (dinv_std) {
    const Var centered = x - mean;
    const Var variance = reduce_mean(centered * centered, axes) + g.node().attr("epsilon", kEpsilon);
    const Var direction = -cast_like(dinv_std, x);
    dx = plus(dx, direction * pow(variance, -1.5) * centered / n);
  }
  return dx;
}

// y = x̂ scale + bias; see LayerNormalizationGrad
Gradients layer_normalization(Grad& g) {
  const int64_t axis = row_axis(g);
  const Var extra = statistics_gradient(g, axis);
  if (!g.dy(0)) return g.to(extra);
  const int outputs = g.needs(2) ? 3 : g.needs(1) ? 2 : 1;
  const Attrs attrs = {{"axis", axis}, {"epsilon", g.node().attr("epsilon", kEpsilon)}};
  auto d = call(g.b(), "LayerNormalizationGrad", outputs, {g.x(0), full_scale(g, axis), g.dy(0)}, attrs);
  d.resize(3);
  return g.to(
      {plus(d[0], extra), d[1] ? sum_to_shape_of(d[1], g.x(1)) : Var(), d[2] ? sum_to_shape_of(d[2], g.x(2)) : Var()});
}

// y = x / sqrt(mean(x²) + epsilon) scale; see RMSNormalizationGrad
Gradients rms_normalization(Grad& g) {
  const int64_t axis = row_axis(g);
  const Attrs attrs = {{"axis", axis}, {"epsilon", g.node().attr("epsilon", kEpsilon)}};
  auto d = call(g.b(), "RMSNormalizationGrad", g.needs(1) ? 2 : 1, {g.x(0), full_scale(g, axis), g.dy()}, attrs);
  d.resize(2);
  return g.to({d[0], d[1] ? sum_to_shape_of(d[1], g.x(1)) : Var()});
}

// ---- BatchNormalization

// A vector over the channels in a shape that broadcasts with x: [C, 1, 1, ...].
Var per_channel(Var v, Var x) {
  std::vector<int64_t> axes;
  for (int64_t i = 2; i < x.rank(); ++i) axes.push_back(i - 1);
  return axes.empty() ? v : unsqueeze(v, axes);
}

Attrs epsilon_of(const Node& node) { return {{"epsilon", node.attr("epsilon", kEpsilon)}}; }

// With running statistics: y = (x - mean) / sqrt(var + epsilon) scale + bias
//   dmean = -dbias scale / sqrt(var + epsilon),   dvar = -½ dscale scale / (var + epsilon)
Gradients batch_normalization(Grad& g) {
  const Var scale = g.x(1), variance = g.x(4);
  const bool sums = g.needs(1) || g.needs(2) || g.needs(3) || g.needs(4);
  auto d = call(g.b(), "BatchNormalizationFrozenGrad", sums ? 3 : 1, {g.x(0), scale, g.x(3), variance, g.dy(0)},
                epsilon_of(g.node()));
  d.resize(3);
  Var dmean, dvariance;
  if (g.needs(3) || g.needs(4)) {
    const Var positive = variance + g.node().attr("epsilon", kEpsilon);
    const Var dshift = -d[2] * scale;
    dmean = dshift / sqrt(positive);
    dvariance = -0.5 * d[1] * scale / positive;
  }
  return g.to({d[0], d[1], d[2], dmean, dvariance});
}

std::string training_obstacle(const Node& node) {
  if (node.attr("training_mode", 0) == 0) return "";
  return "its training_mode is 1, and its running statistics are not state yet; build with the training mode pass";
}

// With the statistics of the batch, which are outputs: (y, mean, var) = BatchNormalizationTrain(x, scale, bias).
// Of n elements in a channel: d mean / dx = 1/n,  d var / dx = 2 (x - mean) / n.
Gradients batch_normalization_train(Grad& g) {
  const Var x = g.x(0);
  Var dx, dscale, dbias;
  if (g.dy(0)) {
    // A call that left the statistics out gets them from another one.
    const bool kept = g.num_outputs() > 2 && g.node().output(1) && g.node().output(2);
    const auto y = kept ? std::vector<Var>{g.y(0), g.y(1), g.y(2)}
                        : call(g.b(), "BatchNormalizationTrain", 3, {x, g.x(1), g.x(2)}, epsilon_of(g.node()));
    auto d = call(g.b(), "BatchNormalizationGrad", g.needs(1) || g.needs(2) ? 3 : 1, {x, g.x(1), y[1], y[2], g.dy(0)},
                  epsilon_of(g.node()));
    d.resize(3);
    dx = d[0], dscale = d[1], dbias = d[2];
  }
  const auto share = [&](Var dv) { return per_channel(dv / elements_per(dv, x), x); };
  if (g.num_outputs() > 1 && g.dy(1)) dx = plus(dx, expand_like(share(g.dy(1)), x));
  if (g.num_outputs() > 2 && g.dy(2)) {
    const Var twice = 2.0 * share(g.dy(2));
    dx = plus(dx, twice * (x - per_channel(g.y(1), x)));
  }
  return g.to({dx, dscale, dbias});
}

// ---- GroupNormalization (opset 21: a scale per channel), InstanceNormalization: see GroupNormalizationGrad

Gradients group_normalization(Grad& g, int64_t groups) {
  auto d = call(g.b(), "GroupNormalizationGrad", g.needs(1) || g.needs(2) ? 3 : 1, {g.x(0), g.x(1), g.dy()},
                {{"num_groups", groups}, {"epsilon", g.node().attr("epsilon", kEpsilon)}});
  d.resize(3);
  return g.to({d[0], d[1], d[2]});
}

// Each channel is a group: their number must be known.
Dim channels_of(const Node& node) {
  const auto& scale = node.input(1)->type().dims;
  return scale && scale->size() == 1 ? scale->front() : Dim();
}

std::string instance_obstacle(const Node& node) {
  return channels_of(node).known() ? "" : "the number of its channels is not known; give its scale a static shape";
}

// ---- LpNormalization, MeanVarianceNormalization, LRN

// y = x / n,  n = Σ |x| or sqrt(Σ x²)    dx = (dy - sign(x) Σ dy y) / n  or  (dy - y Σ dy y) / n
// Where n is 0, y and dx are 0.
Gradients lp_normalization(Grad& g) {
  const Var x = g.x(), y = g.y();
  const std::vector<int64_t> axis = {normalize_axis(g.node().attr("axis", -1), x.rank())};
  const bool absolute = g.node().attr("p", 2) == 1;
  const Var n = absolute ? reduce_sum(abs(x), axis) : sqrt(reduce_sum(x * x, axis));
  const Var zero = g.b().scalar(x.dtype(), 0);
  const Var is_zero = equal(n, zero), zeros = zeros_like(n), inverse = where(is_zero, zeros, reciprocal(n));
  const Var direction = absolute ? sign(x) : y;
  return g.to((g.dy() - direction * reduce_sum(g.dy() * y, axis)) * inverse);
}

// y = c / (s + 1e-9),  c = x - mean(x),  s = sqrt(mean(c²))
//   dx = (dy - mean(dy)) / (s + 1e-9) - c mean(dy c) / (s (s + 1e-9)²); a constant x has s = 0, and no second term
Gradients mean_variance_normalization(Grad& g) {
  const Var x = g.x(), dy = g.dy();
  std::vector<int64_t> axes = g.node().attr("axes", std::vector<int64_t>{0, 2, 3});
  for (int64_t& axis : axes) axis = normalize_axis(axis, x.rank());
  const Var c = x - reduce_mean(x, axes), s = sqrt(reduce_mean(c * c, axes)), d = s + 1e-9;
  const Var is_zero = equal(s, g.b().scalar(x.dtype(), 0)), nonzero = where(is_zero, ones_like(s), s);
  const Var through_c = (dy - reduce_mean(dy, axes)) / d, through_s = c * reduce_mean(dy * c, axes);
  return g.to(through_c - through_s / (nonzero * d * d));
}

// Mean over `before` channels before each and `after` behind it, zeros beyond the ends: a pool over the channels.
Var mean_over_channels(Var x, int64_t before, int64_t after) {
  const auto rank = static_cast<size_t>(x.rank());
  std::vector<int64_t> kernel(rank - 1, 1), pads(2 * (rank - 1), 0);
  kernel[0] = before + 1 + after;
  pads[0] = before;
  pads[rank - 1] = after;
  const Var pooled = x.builder().op("AveragePool", {unsqueeze(x, {1})},
                                    {{"kernel_shape", kernel}, {"pads", pads}, {"count_include_pad", 1}});
  return squeeze(pooled, {1});
}

// y = x d^-beta,  d = bias + alpha mean(x²) over `size` channels
//   dx = dy d^-beta - 2 alpha beta x mean'(dy x d^(-beta - 1)), where mean' is the transpose of the mean
Gradients lrn(Grad& g) {
  const Node& node = g.node();
  const int64_t size = node.attr("size", 1), before = (size - 1) / 2, after = size - 1 - before;
  const double alpha = node.attr("alpha", 1e-4f), beta = node.attr("beta", 0.75f), bias = node.attr("bias", 1.0f);
  const Var x = g.x(), dy = g.dy();
  const Var d = bias + alpha * mean_over_channels(x * x, before, after);
  const Var product = dy * x, across = mean_over_channels(product * pow(d, -beta - 1), after, before);
  const Var own = dy * pow(d, -beta);
  return g.to(own - 2 * alpha * beta * (x * across));
}

}  // namespace

std::vector<GradientRule> normalization_rules() {
  return {
      {"LayerNormalization", layer_normalization, Trait::kNone, "", scale_obstacle},
      {"RMSNormalization", rms_normalization, Trait::kNone, "", scale_obstacle},
      {"RMSNormalization", rms_normalization, Trait::kNone, kDomain, scale_obstacle},
      {"BatchNormalization", batch_normalization, Trait::kNone, "", training_obstacle},
      {"BatchNormalizationTrain", batch_normalization_train, Trait::kNone, kDomain},
      {"GroupNormalization", [](Grad& g) { return group_normalization(g, g.node().attr("num_groups", 1)); }},
      {"InstanceNormalization", [](Grad& g) { return group_normalization(g, channels_of(g.node()).value()); },
       Trait::kNone, "", instance_obstacle},
      {"LpNormalization", lp_normalization},
      {"MeanVarianceNormalization", mean_variance_normalization},
      {"LRN", lrn},
  };
}

}  // namespace onnx_train
