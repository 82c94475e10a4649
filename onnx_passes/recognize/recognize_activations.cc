#include <algorithm>
#include <cmath>

#include "onnx_passes/recognize/recognize.h"

namespace onnx_train {
namespace {

// A replacement: one node on the only variable of the formula.
auto node(const char* op, const Attrs& attrs = {}) {
  return [op, attrs](Builder& b, const Match& m, const Node&) { return b.op(op, {b.var(m.values.at("x"))}, attrs); };
}

Var swish(Builder& b, const Match& m, const Node& last) {
  const double alpha = m.numbers.at("alpha");
  if (!is_attribute(alpha, last.output()->dtype())) return {};
  return standard_or_ours(b, "Swish", 24, {b.var(m.values.at("x"))}, {{"alpha", static_cast<float>(alpha)}});
}

// clip(alpha x + 1/2, 0, 1)
Var hard_sigmoid(Builder& b, const Match& m, const Node& last) {
  const auto found = m.numbers.find("alpha");
  const double alpha = found == m.numbers.end() ? 1.0 / 6 : found->second;
  if (!is_attribute(alpha, last.output()->dtype())) return {};
  return b.op("HardSigmoid", {b.var(m.values.at("x"))}, {{"alpha", static_cast<float>(alpha)}, {"beta", 0.5f}});
}

// x times HardSigmoid(x) with the parameters of HardSwish; in float64 1/6 differs from the float attribute.
Var hard_swish(Builder& b, const Match& m, const Node& last) {
  const auto gate =
      std::find_if(m.nodes.begin(), m.nodes.end(), [](const Node* node) { return node->is("HardSigmoid"); });
  const bool fits = (*gate)->attr("alpha", 0.2f) == 1.0f / 6 && (*gate)->attr("beta", 0.5f) == 0.5f;
  return fits && last.output()->dtype() != DType::kDouble ? b.op("HardSwish", {b.var(m.values.at("x"))}) : Var();
}

// e / Σ e and l - log Σ exp l along one axis.
auto along_axis(const char* op) {
  return [op](Builder& b, const Match& m, const Node&) {
    return b.op(op, {b.var(m.values.at("x"))}, {{"axis", m.axis()}});
  };
}

}  // namespace

std::vector<Rewrite> activation_rewrites() {
  constexpr double kSqrtHalf = 0.70710678118654752440, kSqrt2OverPi = 0.79788456080286535588;
  const Pattern x = any("x");
  const Pattern error = op("Erf", {kSqrtHalf * x});
  const Pattern cubic = x + 0.044715 * pow(x, 3), cubic_factored = x * (1.0 + 0.044715 * pow(x, 2));
  const Pattern log_1p_exp = op("Log", {1.0 + op("Exp", {x})});
  const Pattern clipped = op("Clip", {x + 3.0, 0.0, 6.0});
  const auto clipped_at_1 = [&](const Pattern& scaled) { return op("Clip", {scaled + 0.5, 0.0, 1.0}); };
  const Pattern shifted = x - reduce("ReduceMax", x), exponentials = op("Exp", {shifted});
  const auto gelu = node("Gelu"), gelu_tanh = node("Gelu", {{"approximate", "tanh"}});
  return {
      {"Gelu", 0.5 * x * (1.0 + error), gelu},
      {"Gelu", x * (0.5 + 0.5 * error), gelu},
      {"Gelu of tanh", 0.5 * x * (1.0 + op("Tanh", {kSqrt2OverPi * cubic})), gelu_tanh},
      {"Gelu of tanh", 0.5 * x * (1.0 + op("Tanh", {kSqrt2OverPi * cubic_factored})), gelu_tanh},
      {"Gelu of tanh", 0.5 * x * (1.0 + op("Tanh", {kSqrt2OverPi * x + 0.044715 * kSqrt2OverPi * pow(x, 3)})),
       gelu_tanh},
      {"HardSwish", x * clipped / 6.0, node("HardSwish")},
      {"HardSwish", x * clipped_at_1(x / 6.0), node("HardSwish")},
      {"HardSwish", x * op("HardSigmoid", {x}), hard_swish},
      {"HardSigmoid", clipped / 6.0, hard_sigmoid},
      {"HardSigmoid", clipped_at_1(number("alpha") * x), hard_sigmoid},
      {"Mish", x * op("Tanh", {op("Softplus", {x})}), node("Mish")},
      {"Mish", x * op("Tanh", {log_1p_exp}), node("Mish")},
      {"Softplus", log_1p_exp, node("Softplus")},
      {"Swish", x * op("Sigmoid", {number("alpha") * x}), swish},
      {"Sigmoid", 1.0 / (1.0 + op("Exp", {-x})), node("Sigmoid")},
      {"Softmax", exponentials / reduce("ReduceSum", exponentials), along_axis("Softmax")},
      {"LogSoftmax", shifted - op("Log", {reduce("ReduceSum", exponentials)}), along_axis("LogSoftmax")},
      {"LogSoftmax", x - reduce("ReduceLogSumExp", x), along_axis("LogSoftmax")},
  };
}

}  // namespace onnx_train
