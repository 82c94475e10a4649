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
  if (!x->has_rank()) return "the rank of its input is not known; give the model's inputs shapes";
  const int64_t rows = x->rank() - normalize_axis(node.attr("axis", -1), x->rank());
  for (int i = 1; i < node.num_inputs(); ++i) {
    const Value* v = node.input(i);
    if (v && v->has_rank() && v->rank() > rows)
      return concat("input ", i, " has more dimensions than are normalized; move it into a Mul or Add behind the node");
  }
  return "";
}

Var plus(Var a, Var b) { return a && b ? a + b : a ? a : b; }

// What the outputs Mean and InvStdDev (of the type that stash_type says) add to dx, with n elements in a row:
//   d mean / dx = 1/n,   d inv_std / dx = -inv_std³ (x - mean) / n
Var statistics_gradient(const Grad& g, int64_t axis) {
  const Var dmean = g.num_outputs() > 1 ? g.dy(1) : Var(), dinv_std = g.num_outputs() > 2 ? g.dy(2) : Var();
  if (!dmean && !dinv_std) return {};
  const Var x = g.x(0);
  std::vector<int64_t> axes;
  for (int64_t i = axis; i < x.rank(); ++i) axes.push_back(i);
  const Var mean = reduce_mean(x, axes);
  const Var n = cast_like(size(x), x) / cast_like(size(mean), x);
  Var dx;
  if (dmean) dx = expand_like(cast_like(dmean, x) / n, x);
  if (dinv_std) {
    const Var centered = x - mean;
    const Var variance = reduce_mean(centered * centered, axes) + g.node().attr("epsilon", kEpsilon);
    dx = plus(dx, -cast_like(dinv_std, x) * pow(variance, -1.5) * centered / n);
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
  return g.to(plus(d[0], extra), d[1] ? sum_to_shape_of(d[1], g.x(1)) : Var(),
              d[2] ? sum_to_shape_of(d[2], g.x(2)) : Var());
}

// y = x / sqrt(mean(x²) + epsilon) scale; see RMSNormalizationGrad
Gradients rms_normalization(Grad& g) {
  const int64_t axis = row_axis(g);
  const Attrs attrs = {{"axis", axis}, {"epsilon", g.node().attr("epsilon", kEpsilon)}};
  auto d = call(g.b(), "RMSNormalizationGrad", g.needs(1) ? 2 : 1, {g.x(0), full_scale(g, axis), g.dy()}, attrs);
  d.resize(2);
  return g.to(d[0], d[1] ? sum_to_shape_of(d[1], g.x(1)) : Var());
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
    dmean = -d[2] * scale / sqrt(positive);
    dvariance = -0.5 * d[1] * scale / positive;
  }
  return g.to(d[0], d[1], d[2], dmean, dvariance);
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
    auto d = call(g.b(), "BatchNormalizationGrad", g.needs(1) || g.needs(2) ? 3 : 1,
                  {x, g.x(1), g.y(1), g.y(2), g.dy(0)}, epsilon_of(g.node()));
    d.resize(3);
    dx = d[0], dscale = d[1], dbias = d[2];
  }
  const auto share = [&](Var dv) { return per_channel(dv / (cast_like(size(x), x) / cast_like(size(dv), x)), x); };
  if (g.num_outputs() > 1 && g.dy(1)) dx = plus(dx, expand_like(share(g.dy(1)), x));
  if (g.num_outputs() > 2 && g.dy(2)) dx = plus(dx, 2.0 * share(g.dy(2)) * (x - per_channel(g.y(1), x)));
  return g.to(dx, dscale, dbias);
}

}  // namespace

std::vector<GradientRule> normalization_rules() {
  return {
      {"LayerNormalization", layer_normalization, Trait::kNone, "", scale_obstacle},
      {"RMSNormalization", rms_normalization, Trait::kNone, "", scale_obstacle},
      {"BatchNormalization", batch_normalization, Trait::kNone, "", training_obstacle},
      {"BatchNormalizationTrain", batch_normalization_train, Trait::kNone, kDomain},
  };
}

}  // namespace onnx_train
