#include <iterator>
#include <numbers>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train {
namespace {

// ---- Pow

// y = xᵇ    dx = dy b xᵇ⁻¹, and 0 where b = 0, also at x = 0
Var pow_base_gradient(const Grad& g) {
  const Var x = g.x(0);
  // An exponent that is trained is a constant only today.
  const Tensor exponent = g.needs(1) ? Tensor() : constant_of(g.x(1).value());
  if (exponent.size() == 1 && !exponent.empty()) {
    const double b = exponent.at(0);
    if (b == 0) return zeros_like(g.dy());
    if (b == 1) return g.dy();
    return g.dy() * (b == 2 ? b * x : b * pow(x, b - 1));
  }
  const Var b = cast_like(g.x(1), x);
  const Var is_zero = equal(b, g.b().scalar(b.dtype(), 0));
  // The exponent -1 is kept away from bases of zero: 0 · ∞ would be NaN.
  const Var lowered = where(is_zero, g.b().scalar(b.dtype(), 1), b - 1.0);
  return g.dy() * (b * pow(x, lowered));
}

// db = dy y log(x), and 0 at x = 0 for b >= 0, where y does not move. NaN for x < 0: there is no derivative.
Var pow_exponent_gradient(const Grad& g) {
  const Var x = g.x(0), b = g.x(1);
  const Var zero = g.b().scalar(x.dtype(), 0), one = g.b().scalar(x.dtype(), 1);
  const Var is_zero = equal(x, zero), flat = logical_and(is_zero, b >= 0.0);
  const Var slope = g.y() * log(where(flat, one, x));
  return cast_like(g.dy() * where(flat, zero, slope), b);
}

Gradients pow_gradients(Grad& g) {
  return g.to({g.needs(0) ? pow_base_gradient(g) : Var(), g.needs(1) ? pow_exponent_gradient(g) : Var()});
}

// ---- Variadic operators

Gradients share_equally(Grad& g, double weight) {
  return Gradients(static_cast<size_t>(g.num_inputs()), weight == 1 ? g.dy() : g.dy() * weight);
}

// y = max(x₁, x₂, …)    dxᵢ = dy [xᵢ = y] / Σⱼ [xⱼ = y]: operands that tie share the gradient
Gradients extremum_gradients(Grad& g) {
  if (g.num_inputs() == 1) return g.to(g.dy());
  Gradients chosen;
  for (int i = 0; i < g.num_inputs(); ++i) chosen.push_back(cast_like(equal(g.x(i), g.y()), g.dy()));
  Var count = chosen[0];
  for (size_t i = 1; i < chosen.size(); ++i) count = count + chosen[i];
  const Var share = g.dy() / count;
  for (Var& c : chosen) c = c * share;
  return chosen;
}

// ---- Choices

// y = c ? a : b    da = c ? dy : 0,  db = c ? 0 : dy
Gradients where_gradients(Grad& g) {
  const Var zero = g.b().scalar(g.dy().dtype(), 0);
  return g.to(
      {Var(), g.needs(1) ? where(g.x(0), g.dy(), zero) : Var(), g.needs(2) ? where(g.x(0), zero, g.dy()) : Var()});
}

// y = min(max(x, low), high)    dx = dy where low <= x <= high; d low = Σ dy where x < low; d high = Σ dy where x >
// high. Where the bounds cross, y is high everywhere.
Gradients clip_gradients(Grad& g) {
  const Var x = g.x(0), low = g.x(1), high = g.x(2), zero = g.b().scalar(x.dtype(), 0);
  Var inside, below, above;
  if (low.value()) {
    inside = x >= low;
    below = x < low;
  }
  if (high.value()) {
    inside = inside ? logical_and(inside, x <= high) : x <= high;
    above = x > high;
  }
  if (below && above) {
    below = logical_and(below, low <= high);
    above = logical_or(above, low > high);
  }
  const auto masked = [&](Var mask) { return mask ? where(mask, g.dy(), zero) : Var(); };
  return g.to(
      {inside ? masked(inside) : g.dy(), g.needs(1) ? masked(below) : Var(), g.needs(2) ? masked(above) : Var()});
}

// y = a - q b, q a whole number    da = dy,  db = -q dy
Gradients mod_gradients(Grad& g) {
  const Var quotient = g.b().op("Round", {(g.x(0) - g.y()) / g.x(1)});
  return g.to({g.dy(), -(quotient * g.dy())});
}

// ---- Tables

std::vector<GradientRule> arithmetic_rules() {
  return {
      // y = a + b
      {"Add",
       [](Grad& g) {
         return g.to({g.dy(), g.dy()});
       },
       Trait::kBroadcasts},
      // y = a - b
      {"Sub",
       [](Grad& g) {
         return g.to({g.dy(), g.needs(1) ? -g.dy() : Var()});
       },
       Trait::kBroadcasts},
      // y = a b    da = dy b,  db = dy a
      {"Mul",
       [](Grad& g) {
         return g.to({g.needs(0) ? g.dy() * g.x(1) : Var(), g.needs(1) ? g.dy() * g.x(0) : Var()});
       },
       Trait::kBroadcasts},
      // y = a / b    da = dy / b,  db = -y dy / b
      {"Div",
       [](Grad& g) {
         const Var da = g.dy() / g.x(1);
         return g.to({da, g.needs(1) ? -(da * g.y()) : Var()});
       },
       Trait::kBroadcasts},
      {"Mod", mod_gradients, Trait::kBroadcasts},
      {"Pow", pow_gradients, Trait::kBroadcasts},
      // y = -x
      {"Neg", [](Grad& g) { return g.to(-g.dy()); }},
      // y = |x|    dx = dy sign(x)
      {"Abs", [](Grad& g) { return g.to(g.dy() * sign(g.x())); }},
      // y = √x    dx = dy / (2 y)
      {"Sqrt", [](Grad& g) { return g.to(0.5 * g.dy() / g.y()); }},
      // y = 1 / x    dx = -dy y²
      {"Reciprocal", [](Grad& g) { return g.to(-(g.dy() * (g.y() * g.y()))); }},
      // y = x₁ + x₂ + …
      {"Sum", [](Grad& g) { return share_equally(g, 1); }, Trait::kBroadcasts},
      // y = (x₁ + … + xₙ) / n    dxᵢ = dy / n
      {"Mean", [](Grad& g) { return share_equally(g, 1.0 / g.num_inputs()); }, Trait::kBroadcasts},
      {"Max", extremum_gradients, Trait::kBroadcasts},
      {"Min", extremum_gradients, Trait::kBroadcasts},
      {"Clip", clip_gradients, Trait::kBroadcasts},
      {"Where", where_gradients, Trait::kBroadcasts},
      // The gradient has the type of the input again.
      {"Cast", [](Grad& g) { return g.to(cast_like(g.dy(), g.x())); }},
      {"CastLike", [](Grad& g) { return g.to(cast_like(g.dy(), g.x())); }},
      {"Identity", [](Grad& g) { return g.to(g.dy()); }},
  };
}

std::vector<GradientRule> transcendental_rules() {
  return {
      // y = exp(x)    dx = dy y
      {"Exp", [](Grad& g) { return g.to(g.dy() * g.y()); }},
      // y = log(x)    dx = dy / x
      {"Log", [](Grad& g) { return g.to(g.dy() / g.x()); }},
      // y = erf(x)    dx = dy 2/√π exp(-x²)
      {"Erf", [](Grad& g) { return g.to(g.dy() * (2 * std::numbers::inv_sqrtpi * exp(-(g.x() * g.x())))); }},
      // y = sin(x)    dx = dy cos(x)
      {"Sin", [](Grad& g) { return g.to(g.dy() * cos(g.x())); }},
      // y = cos(x)    dx = -dy sin(x)
      {"Cos", [](Grad& g) { return g.to(-(g.dy() * sin(g.x()))); }},
      // y = tan(x)    dx = dy (1 + y²)
      {"Tan", [](Grad& g) { return g.to(g.dy() * (1.0 + g.y() * g.y())); }},
      // y = asin(x)    dx = dy / √(1 - x²)
      {"Asin", [](Grad& g) { return g.to(g.dy() / sqrt(1.0 - g.x() * g.x())); }},
      // y = acos(x)    dx = -dy / √(1 - x²)
      {"Acos", [](Grad& g) { return g.to(-(g.dy() / sqrt(1.0 - g.x() * g.x()))); }},
      // y = atan(x)    dx = dy / (1 + x²)
      {"Atan", [](Grad& g) { return g.to(g.dy() / (1.0 + g.x() * g.x())); }},
      // y = sinh(x)    dx = dy cosh(x)
      {"Sinh", [](Grad& g) { return g.to(g.dy() * g.b().op("Cosh", {g.x()})); }},
      // y = cosh(x)    dx = dy sinh(x)
      {"Cosh", [](Grad& g) { return g.to(g.dy() * g.b().op("Sinh", {g.x()})); }},
      // y = asinh(x)    dx = dy / √(x² + 1)
      {"Asinh", [](Grad& g) { return g.to(g.dy() / sqrt(g.x() * g.x() + 1.0)); }},
      // y = acosh(x)    dx = dy / √(x² - 1)
      {"Acosh", [](Grad& g) { return g.to(g.dy() / sqrt(g.x() * g.x() - 1.0)); }},
      // y = atanh(x)    dx = dy / (1 - x²)
      {"Atanh", [](Grad& g) { return g.to(g.dy() / (1.0 - g.x() * g.x())); }},
  };
}

// Constant almost everywhere.
std::vector<GradientRule> zero_rules() {
  std::vector<GradientRule> rules;
  for (const char* op : {"Sign",      "Floor",          "Ceil",       "Round",    "Equal", "Less", "LessOrEqual",
                         "Greater",   "GreaterOrEqual", "And",        "Or",       "Xor",   "Not",  "BitwiseAnd",
                         "BitwiseOr", "BitwiseXor",     "BitwiseNot", "BitShift", "IsNaN", "IsInf"}) {
    rules.push_back({op, nullptr, Trait::kZero});
  }
  return rules;
}

}  // namespace

std::vector<GradientRule> elementwise_rules() {
  std::vector<GradientRule> all;
  for (auto* part : {arithmetic_rules, transcendental_rules, zero_rules}) {
    std::vector<GradientRule> rules = part();
    std::move(rules.begin(), rules.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace onnx_train
