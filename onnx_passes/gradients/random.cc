#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

// ONNX's own Dropout, in inference: y = x.
std::string dropout_obstacle(const Node& node) {
  if (!node.input(2)) return "";
  const Tensor training = constant_of(node.input(2));
  if (training.size() == 1 && training.at(0) == 0) return "";
  return "its training_mode may be true, and its random numbers are no state yet; build with the training mode pass";
}

// What a gradient of y = x / (1 - ratio), where kept, gives to the ratio: Σ dy y / (1 - ratio). The mask only jumps.
Var ratio_gradient(const Grad& g) {
  const Var ratio = g.x(2), y = g.y();
  const Var product = g.dy(0) * y, each = product / (1.0 - cast_like(ratio, y));
  return cast_like(sum_to_shape_of(each, ratio), ratio);
}

// (y, mask) = Dropout(x, key, ratio)    dx = dy / (1 - ratio) where kept
// A call that left the mask out gets it from another one, which draws the same numbers.
Gradients dropout(Grad& g) {
  const bool kept = g.num_outputs() > 1 && g.node().output(1);
  const Attrs stream = {{"stream", g.node().attr("stream", 0)}};
  const Var mask = kept ? g.y(1) : call(g.b(), "Dropout", 2, {g.x(0), g.x(1), g.x(2)}, stream)[1];
  return g.to({call(g.b(), "DropoutGrad", {g.dy(0), mask, g.x(2)}), Var(), g.needs(2) ? ratio_gradient(g) : Var()});
}

// dx = dy / (1 - ratio) where kept    ddy = DropoutGrad(ddx, mask, ratio): it is linear
Gradients dropout_gradient(Grad& g) {
  return g.to({call(g.b(), "DropoutGrad", {g.dy(), g.x(1), g.x(2)}), Var(), g.needs(2) ? ratio_gradient(g) : Var()});
}

}  // namespace

std::vector<GradientRule> random_rules() {
  return {
      {"Dropout", [](Grad& g) { return g.to(g.dy(0)); }, Trait::kNone, "", dropout_obstacle},
      {"Bernoulli", nullptr, Trait::kZero},
      {"RandomNormalLike", nullptr, Trait::kZero},
      {"RandomUniformLike", nullptr, Trait::kZero},
      {"Dropout", dropout, Trait::kNone, kDomain},
      {"DropoutGrad", dropout_gradient, Trait::kNone, kDomain},
  };
}

}  // namespace onnx_train
