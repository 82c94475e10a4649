#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"

namespace onnx_train {
namespace {

double param(const Grad& g, const char* name, float otherwise) { return g.node().attr(name, otherwise); }

Attrs axis_of(const Grad& g) { return {{"axis", g.node().attr("axis", -1)}}; }

// Elu, Selu and Celu: y = α (exp(x / width) - 1) below zero, where dy/dx = (y + α) / width; `slope` above.
Gradients exponential(Grad& g, double slope, double alpha, double width) {
  const Var curve = (g.y() + alpha) / width;
  return g.to(g.dy() * where(g.x() > 0.0, g.b().scalar(g.x().dtype(), slope), curve));
}

// y = x clip(x/6 + 1/2, 0, 1)    dx = dy times 0 up to -3, x/3 + 1/2 between, 1 from 3 on
Gradients hard_swish(Grad& g) {
  const Var x = g.x();
  const Var zero = g.b().scalar(x.dtype(), 0), one = g.b().scalar(x.dtype(), 1);
  const Var is_below = x < 3.0, slope = where(is_below, x / 3.0 + 0.5, one);
  return g.to(g.dy() * where(x > -3.0, slope, zero));
}

// One node: the sigmoid in it would be computed in the forward pass otherwise, and kept.
Gradients swish(Grad& g) {
  return g.to(call(g.b(), "SwishGrad", {g.dy(), g.x()}, {{"alpha", g.node().attr("alpha", 1.0f)}}));
}

// y = x t, t = tanh(softplus(x))    dx = dy (t + x (1 - t²) sigmoid(x))
Gradients mish(Grad& g) {
  const Var x = g.x();
  const Var t = tanh(g.b().op("Softplus", {x}));
  const Var dsoftplus = x * (1.0 - t * t);
  return g.to(g.dy() * (t + dsoftplus * sigmoid(x)));
}

Gradients gelu(Grad& g) {
  const bool approximate = g.node().attr("approximate", "none") == "tanh";
  return g.to(call(g.b(), approximate ? "GeluTanhGrad" : "GeluGrad", {g.dy(), g.x()}));
}

// ---- Softmax of rows that a mask hides entirely: NaN, which a Where after it replaces.

// Whether `condition` is one for each row along `axis` of y, or says where y is NaN, which a row is as a whole.
bool is_by_row(const Value* condition, const Value* y, int64_t axis) {
  if (const Node* node = condition->producer(); node && node->is("IsNaN") && node->input(0) == y) return true;
  if (!condition->has_rank()) return false;
  const int64_t at = axis - (y->rank() - condition->rank());
  return at < 0 || (*condition->type().dims)[static_cast<size_t>(at)] == Dim(1);
}

// The Where through which alone y, or what a Cast makes of it, is read; null where there is none.
const Node* find_guard(const Value* y, int64_t axis) {
  const Node* guard = nullptr;
  if (y->graph().is_output(y)) return nullptr;
  for (const Use& use : y->uses()) {
    const Node* node = use.node;
    if (node->is("IsNaN") || (node->is("CastLike") && use.index == 1)) continue;
    if (guard) return nullptr;
    if (node->is("Cast")) {
      guard = find_guard(node->output(), axis);
    } else if (node->is("Where") && node->output()->type() == y->type() && is_by_row(node->input(0), y, axis)) {
      guard = node;
    }
    if (!guard) return nullptr;
  }
  return guard;
}

// Whether a Where reads y as one of its two values, or reads what a Cast or a rounding makes of it.
bool is_selected(const Value* y) {
  return std::any_of(y->uses().begin(), y->uses().end(), [](const Use& use) {
    const Node& node = *use.node;
    const bool casts = node.is("Cast") || node.is("RoundTo", kDomain) || node.is("RoundGradientTo", kDomain);
    return casts ? is_selected(node.output()) : node.is("Where") && use.index > 0;
  });
}

// y without NaN where a guard after it replaces rows that are NaN. The gradient of a row that is replaced is 0; times
// NaN that would be NaN. The result of the guard is taken where it is known to be y with other rows, so that both
// passes read one value. The types tell less where a file has two names for one size: then y's own NaN are replaced.
Var guarded_output(const Grad& g) {
  const Var y = g.y();
  if (!is_selected(y.value())) return y;
  const Var zero = g.b().scalar(y.dtype(), 0);
  const Node* guard =
      y.value()->has_rank() ? find_guard(y.value(), normalize_axis(g.node().attr("axis", -1), y.rank())) : nullptr;
  if (!guard) return where(g.b().op("IsNaN", {y}), zero, y);
  for (int i : {1, 2}) {
    if (guard->input(i) == y.value()) return g.b().var(guard->output());
  }
  const Var condition = g.b().var(guard->input(0));
  const bool keeps_true = guard->input(1)->producer() && guard->input(1)->producer()->is("Cast");
  return keeps_true ? where(condition, y, zero) : where(condition, zero, y);
}

}  // namespace

std::vector<GradientRule> activation_rules() {
  return {
      {"Relu",
       [](Grad& g) {
         return g.to(call(g.b(), "ReluGrad", {g.dy(), g.y()}));
       }},
      // y = x where x > 0, else α x
      {"LeakyRelu",
       [](Grad& g) {
         const Var positive = g.x() > 0.0;
         return g.to(where(positive, g.dy(), param(g, "alpha", 0.01f) * g.dy()));
       }},
      // The same with α an input: dα = dy x where x <= 0
      {"PRelu",
       [](Grad& g) {
         const Var positive = g.x(0) > 0.0;
         const Var zero = g.b().scalar(g.dy().dtype(), 0);
         return g.to({where(positive, g.dy(), g.x(1) * g.dy()), where(positive, zero, g.x(0) * g.dy())});
       },
       Trait::kBroadcasts},
      {"Elu", [](Grad& g) { return exponential(g, 1, param(g, "alpha", 1), 1); }},
      {"Selu",
       [](Grad& g) {
         const double gamma = param(g, "gamma", 1.05070102214813232421875f);
         return exponential(g, gamma, gamma * param(g, "alpha", 1.67326319217681884765625f), 1);
       }},
      {"Celu",
       [](Grad& g) {
         const double alpha = param(g, "alpha", 1);
         return exponential(g, 1, alpha, alpha);
       }},
      // y = x where x > α, else 0
      {"ThresholdedRelu", [](Grad& g) { return g.to(where(g.x() > param(g, "alpha", 1), g.dy(), 0.0)); }},
      // y = x ∓ bias where |x| > λ, else 0
      {"Shrink",
       [](Grad& g) {
         const double lambda = param(g, "lambd", 0.5f);
         const Var above = g.x() > lambda;
         return g.to(where(logical_or(above, g.x() < -lambda), g.dy(), 0.0));
       }},
      {"Sigmoid",
       [](Grad& g) {
         return g.to(call(g.b(), "SigmoidGrad", {g.dy(), g.y()}));
       }},
      // y = clip(α x + β, 0, 1)    dx = α dy where 0 < y < 1
      {"HardSigmoid",
       [](Grad& g) {
         const Var positive = g.y() > 0.0, inside = logical_and(positive, g.y() < 1.0);
         return g.to(where(inside, param(g, "alpha", 0.2f) * g.dy(), 0.0));
       }},
      {"HardSwish", hard_swish},
      {"Tanh",
       [](Grad& g) {
         return g.to(call(g.b(), "TanhGrad", {g.dy(), g.y()}));
       }},
      // y = log(1 + exp(x))    dx = dy sigmoid(x)
      {"Softplus", [](Grad& g) { return g.to(g.dy() * sigmoid(g.x())); }},
      // y = x / (1 + |x|)    dx = dy / (1 + |x|)²
      {"Softsign",
       [](Grad& g) {
         const Var scale = 1.0 + abs(g.x());
         return g.to(g.dy() / (scale * scale));
       }},
      {"Gelu", gelu},
      {"Swish", swish},
      {"Swish", swish, Trait::kNone, kDomain},
      {"Mish", mish},
      {"Softmax",
       [](Grad& g) {
         return g.to(call(g.b(), "SoftmaxGrad", {g.dy(), guarded_output(g)}, axis_of(g)));
       }},
      {"LogSoftmax",
       [](Grad& g) {
         return g.to(call(g.b(), "LogSoftmaxGrad", {g.dy(), guarded_output(g)}, axis_of(g)));
       }},
      {"Hardmax", nullptr, Trait::kZero},
  };
}

}  // namespace onnx_train
