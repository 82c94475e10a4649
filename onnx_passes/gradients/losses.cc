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

// loss, l = SoftmaxCrossEntropy(x, y, w)      dx = SoftmaxCrossEntropyGrad(dloss, x, y, l, w) + dl exp(x - l)
// The class weights w are constants, as in PyTorch: they have no gradient.
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
    const Var dlog_sum_exp = unsqueeze(g.dy(1), axes) * exp(logits - unsqueeze(log_sum_exp, axes));
    dlogits = dlogits ? dlogits + dlog_sum_exp : dlog_sum_exp;
  }
  return g.to(dlogits);
}

}  // namespace

std::vector<GradientRule> loss_rules() {
  return {
      {"SoftmaxCrossEntropy", softmax_cross_entropy, Trait::kNone, kDomain},
  };
}

}  // namespace onnx_train
