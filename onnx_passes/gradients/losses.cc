#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {
namespace {

Attrs attributes_of(const Node& node) {
  return {{"axis", node.attr("axis", 1)},
          {"ignore_index", node.attr("ignore_index", -100)},
          {"label_smoothing", node.attr_tensor("label_smoothing")},
          {"reduction", node.attr("reduction", "mean")}};
}

// With log p = x - l, n_c positions of class c, s label smoothing, all over the positions i that are not ignored:
//   dw_c = -dloss (Σᵢ ((1 - s) [yᵢ = c] + s / C) log p[i, c])
// reduction "mean": (dw_c - dloss loss n_c) / Σᵢ w[yᵢ], and 0 where that sum is 0
Var weight_gradient(const Grad& g, const Attrs& attrs, Var log_sum_exp) {
  Builder& b = g.b();
  const Var x = g.x(0), labels = cast(g.x(1), DType::kInt64), weight = g.x(2);
  const int64_t rank = x.rank(), axis = normalize_axis(g.node().attr("axis", 1), rank);
  const double smoothing = g.node().attr_tensor("label_smoothing").at(0);
  const auto per_class = [&](Var values) {
    std::vector<int64_t> others;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != axis) others.push_back(i);
    }
    return reduce_sum(values, others, /*keepdims=*/false);
  };
  std::vector<int64_t> column(static_cast<size_t>(rank - axis), 1);
  column[0] = -1;
  const Var zero = b.scalar(x.dtype(), 0), classes = squeeze(dim(x, axis), {0});
  const Var each = b.op("Range", {b.scalar(DType::kInt64, 0), classes, b.scalar(DType::kInt64, 1)});
  const Var ignored = equal(labels, b.scalar(DType::kInt64, static_cast<double>(g.node().attr("ignore_index", -100))));
  const Var ignored_column = unsqueeze(ignored, {axis});
  const Var label = unsqueeze(labels, {axis}), is_label = equal(label, reshape(each, column));
  const Var hit = logical_and(is_label, logical_not(ignored_column));
  const Var log_p = x - unsqueeze(log_sum_exp, {axis});
  Var sums = per_class(where(hit, log_p, zero)) * (1 - smoothing);
  if (smoothing > 0) {
    const Var of_all = per_class(where(ignored_column, zero, log_p));
    sums = sums + of_all * (smoothing / cast_like(classes, x));
  }
  const Var dsum = -sums * g.dy(0);
  if (g.node().attr("reduction", "mean") == std::string("sum")) return dsum;
  const Var counts = per_class(cast(hit, x.dtype()));
  const Var loss = g.y(0) ? g.y(0) : call(b, "SoftmaxCrossEntropy", 2, {x, g.x(1), weight}, attrs)[0];
  const Var total = sum_all(weight * counts), nothing = equal(total, zero);
  const Var numerator = dsum - g.dy(0) * loss * counts;
  return where(nothing, zero, numerator / where(nothing, b.scalar(x.dtype(), 1), total));
}

// loss, l = SoftmaxCrossEntropy(x, y, w)      dx = SoftmaxCrossEntropyGrad(dloss, x, y, l, w) + dl exp(x - l)
Gradients softmax_cross_entropy(Grad& g) {
  const Attrs attrs = attributes_of(g.node());
  const Var logits = g.x(0), labels = g.x(1), weight = g.num_inputs() > 2 ? g.x(2) : Var();
  const Var log_sum_exp = g.num_outputs() > 1 && g.y(1)
                              ? g.y(1)
                              : call(g.b(), "SoftmaxCrossEntropy", 2, {logits, labels, weight}, attrs)[1];
  Var dlogits;
  if (g.dy(0)) {
    dlogits = call(g.b(), "SoftmaxCrossEntropyGrad", {g.dy(0), logits, labels, log_sum_exp, weight}, attrs);
  }
  if (g.num_outputs() > 1 && g.dy(1)) {
    const std::vector<int64_t> axes{g.node().attr("axis", 1)};
    const Var dlog_sum_exp = unsqueeze(g.dy(1), axes);
    const Var through_sum = dlog_sum_exp * exp(logits - unsqueeze(log_sum_exp, axes));
    dlogits = dlogits ? dlogits + through_sum : through_sum;
  }
  const bool weighs = g.needs(2) && g.dy(0);
  return g.to({dlogits, Var(), weighs ? weight_gradient(g, attrs, log_sum_exp) : Var()});
}

}  // namespace

std::vector<GradientRule> loss_rules() {
  return {
      {"SoftmaxCrossEntropy", softmax_cross_entropy, Trait::kNone, kDomain},
      {"StopGradient", nullptr, Trait::kZero, kDomain},
  };
}

}  // namespace onnx_train
