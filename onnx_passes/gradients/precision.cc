// Gradients through the rounding of mixed precision. Rounding is treated as the identity ("straight through"): its own
// derivative is zero almost everywhere and says nothing.
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {

std::vector<GradientRule> precision_rules() {
  return {
      // y = round(x)    dx = dy
      {"RoundTo", [](Grad& g) { return g.to(g.dy()); }, Trait::kNone, kDomain},
      {"FakeQuantize", [](Grad& g) { return g.to(g.dy()); }, Trait::kNone, kDomain},
      // y = x    dx = round(dy)
      {"RoundGradientTo",
       [](Grad& g) {
         return g.to(call(g.b(), "RoundTo", {g.dy()}, {{"to", g.node().attr("to", 0)}}));
       },
       Trait::kNone, kDomain},
  };
}

}  // namespace onnx_train
