// Updates that scale each element by its own history. Formulas and names of slots are those of torch.optim, Lion's are
// of Chen et al. 2023, Adan's of its authors' program.
#include <cmath>
#include <limits>

#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Term mean(const Term& old, const Term& share, const Term& x) { return old * share + x * (1 - share); }

// w with decay apart from the gradient, and the gradient without it; or w, and the gradient with it.
struct Decayed {
  Term w, g;
};
Decayed decay(UpdateBody& f, bool decoupled) {
  if (!decoupled) return {f.weight(), f.gradient()};
  const Term w = f.decayed_weight();
  return {w, f.scaled_gradient()};
}

// The moments of Adam's relatives, and 1 - βᵗ.
struct AdamMoments {
  Term m, v, correction1, correction2;
};
AdamMoments moments(UpdateBody& f, const Term& g) {
  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const Term m = f.next("exp_avg", mean(f.slot("exp_avg"), beta1, g));
  const Term v = f.next("exp_avg_sq", mean(f.slot("exp_avg_sq"), beta2, g * g));
  return {m, v, 1 - pow(beta1, t), 1 - pow(beta2, t)};
}

// m' = β₁m + (1-β₁)g      v' = β₂v + (1-β₂)g²      w' = w - lr/(1-β₁ᵗ) · m' / (√v'/√(1-β₂ᵗ) + ε)
// With a third slot, v̂' = max(v̂, v') in the place of v' in the last.
FunctionText adam(const char* op, std::vector<std::string> slots, bool decoupled, const FunctionCall& call) {
  UpdateBody f(op, slots, call);
  const auto [w, g] = decay(f, decoupled);
  const auto [m, v, correction1, correction2] = moments(f, g);
  const Term most = slots.size() > 2 ? f.next(slots[2], max(f.slot(slots[2]), v)) : v;
  const Term root = sqrt(most) / sqrt(correction2) + f.attribute("epsilon");
  f.next("w", w - m / root * (f.rate() / correction1));
  return f.text();
}

FunctionRow adam_row(const char* op, const std::vector<std::string>& slots, bool decoupled) {
  return {op, [=](const FunctionCall& call) { return adam(op, slots, decoupled, call); }};
}

// m' = β₁m + (1-β₁)g      v' = β₂v + (1-β₂)g²      u = w - lr·c · m' / (√v' + ε)      w' = u - lr·decay·u
// where c = √(1-β₂ᵗ)/(1-β₁ᵗ), or 1 without correct_bias. Adam adds ε to √v'/√(1-β₂ᵗ), AdamW decays first.
FunctionText hf_adamw(const FunctionCall& call) {
  UpdateBody f("HfAdamW", {"exp_avg", "exp_avg_sq"}, call);
  const auto [m, v, correction1, correction2] = moments(f, f.scaled_gradient());
  const Term rate = f.flag("correct_bias") ? f.rate() * sqrt(correction2) / correction1 : f.rate();
  const Term w = f.weight() - m / (sqrt(v) + f.attribute("epsilon")) * rate;
  f.next("w", w * (1 - f.rate() * f.attribute("weight_decay")));
  return f.text();
}

// m' = m + (1-β₁)(g - m)      v' = v + (1-β₂)(g² - v)      w' = w - lr·√(1-β₂ᵗ)/(1-β₁ᵗ) · m' / (√v' + ε)
// in the rows whose gradient is not zero everywhere. All other rows keep weight and moments.
FunctionText sparse_adam(const FunctionCall& call) {
  UpdateBody f("SparseAdam", {"exp_avg", "exp_avg_sq"}, call);
  const Term g = f.scaled_gradient();
  std::vector<int64_t> row_axes;
  for (int64_t i = 1; i < f.weight_type().rank(); ++i) row_axes.push_back(i);
  f.depends_on(concat("rank", f.weight_type().rank()));
  const Term is_idle = equal(f.op("ReduceL1", {f.input("g"), row_axes}), 0);
  const auto where_read = [&](const Term& change) { return where(is_idle, 0, change); };
  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const auto moment = [&](const char* slot, const Term& beta, const Term& x) {
    return f.next(slot, f.slot(slot) + where_read((x - f.slot(slot)) * (1 - beta)));
  };
  const Term m = moment("exp_avg", beta1, g), v = moment("exp_avg_sq", beta2, g * g);
  const Term step_size = f.rate() * sqrt(1 - pow(beta2, t)) / (1 - pow(beta1, t));
  f.next("w", f.weight() - where_read(m / (sqrt(v) + f.attribute("epsilon")) * step_size));
  return f.text();
}

// v' = αv + (1-α)g²      a' = αa + (1-α)g      d = g / (√(v' - a'²) + ε)      b' = μb + d      w' = w - lr·b'
FunctionText rms_prop(const FunctionCall& call) {
  UpdateBody f("RmsProp", {"square_avg", "momentum_buffer", "grad_avg"}, call);
  const Term alpha = f.attribute("alpha"), g = f.gradient();
  Term square = f.next("square_avg", mean(f.slot("square_avg"), alpha, g * g));
  if (f.has("grad_avg")) {
    const Term average = f.next("grad_avg", mean(f.slot("grad_avg"), alpha, g));
    square = square - average * average;
  }
  Term direction = g / (sqrt(square) + f.attribute("epsilon"));
  if (f.has("momentum_buffer")) {
    direction = f.next("momentum_buffer", f.slot("momentum_buffer") * f.attribute("momentum") + direction);
  }
  f.next("w", f.weight() - direction * f.rate());
  return f.text();
}

// s' = s + g²      w' = w - lr / (1 + (t-1)·decay) · g / (√s' + ε)
FunctionText adagrad(const FunctionCall& call) {
  UpdateBody f("Adagrad", {"sum"}, call);
  const Term g = f.gradient();
  const Term sum = f.next("sum", f.slot("sum") + g * g);
  const Term rate = f.rate() / (1 + (f.step() - 1) * f.attribute("lr_decay"));
  f.next("w", f.weight() - g / (sqrt(sum) + f.attribute("epsilon")) * rate);
  return f.text();
}

// v' = ρv + (1-ρ)g²      d = g · √(u+ε) / √(v'+ε)      u' = ρu + (1-ρ)d²      w' = w - lr·d
FunctionText adadelta(const FunctionCall& call) {
  UpdateBody f("Adadelta", {"square_avg", "acc_delta"}, call);
  const Term rho = f.attribute("rho"), epsilon = f.attribute("epsilon"), g = f.gradient();
  const Term square = f.next("square_avg", mean(f.slot("square_avg"), rho, g * g));
  const Term delta = sqrt(f.slot("acc_delta") + epsilon) / sqrt(square + epsilon) * g;
  f.next("acc_delta", mean(f.slot("acc_delta"), rho, delta * delta));
  f.next("w", f.weight() - delta * f.rate());
  return f.text();
}

// m' = β₁m + (1-β₁)g      u' = max(β₂u, |g| + ε)      w' = w - lr/(1-β₁ᵗ) · m'/u'
FunctionText adamax(const FunctionCall& call) {
  UpdateBody f("Adamax", {"exp_avg", "exp_inf"}, call);
  const Term beta1 = f.attribute("beta1"), g = f.gradient();
  const Term m = f.next("exp_avg", mean(f.slot("exp_avg"), beta1, g));
  const Term u = f.next("exp_inf", max(f.slot("exp_inf") * f.attribute("beta2"), abs(g) + f.attribute("epsilon")));
  f.next("w", f.weight() - m / u * (f.rate() / (1 - pow(beta1, f.step()))));
  return f.text();
}

// μₜ = β₁(1 - 0.96^(tψ)/2)      Π' = Π·μₜ      r = √(v'/(1-β₂ᵗ)) + ε
// w' = w - lr·(1-μₜ)/(1-Π') · g/r - lr·μₜ₊₁/(1-Π'·μₜ₊₁) · m'/r
FunctionText nadam(const FunctionCall& call) {
  UpdateBody f("NAdam", {"exp_avg", "exp_avg_sq", "mu_product"}, call);
  const auto [w, g] = decay(f, f.flag("decoupled"));
  const auto [m, v, correction1, correction2] = moments(f, g);
  const auto momentum = [&](const Term& t) {
    return f.attribute("beta1") * (1 - 0.5 * pow(0.96, t * f.attribute("momentum_decay")));
  };
  const Term mu = momentum(f.step()), mu_next = momentum(f.step() + 1);
  const Term product = f.next("mu_product", f.slot("mu_product") * mu);
  const Term root = sqrt(v / correction2) + f.attribute("epsilon");
  const Term one = f.tensor(1);
  const Term of_g = f.rate() * (1 - mu) / (one - product), of_m = f.rate() * mu_next / (one - product * mu_next);
  f.next("w", w - g / root * of_g - m / root * of_m);
  return f.text();
}

// ρ = 2/(1-β₂) - 1      ρₜ = ρ - 2tβ₂ᵗ/(1-β₂ᵗ)      m̂ = m'/(1-β₁ᵗ)
// w' = w - lr·m̂·√((ρₜ-4)(ρₜ-2)ρ / ((ρ-4)(ρ-2)ρₜ)) · √(1-β₂ᵗ)/(√v'+ε) where ρₜ > 5, else w - lr·m̂
FunctionText radam(const FunctionCall& call) {
  UpdateBody f("RAdam", {"exp_avg", "exp_avg_sq"}, call);
  const auto [w, g] = decay(f, f.flag("decoupled"));
  const auto [m, v, correction1, correction2] = moments(f, g);
  const Term beta2 = f.attribute("beta2"), t = f.step();
  const Term most = 2 / (1 - beta2) - 1;
  const Term length = most - 2 * t * pow(beta2, t) / correction2;
  const Term square = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
  const Term rectified = sqrt(max(square, 0) * correction2);
  const Term is_plain = where(length > 5, f.number(0), 1);
  const Term adapted = where(length > 5, rectified, 0);
  const Term factor = adapted / (sqrt(v) + f.attribute("epsilon")) + is_plain;
  f.next("w", w - m * (f.rate() / correction1) * factor);
  return f.text();
}

// c = β₁m + (1-β₁)g      w' = (1 - lr·λ)w - lr·sign(c)      m' = β₂m + (1-β₂)g
FunctionText lion(const FunctionCall& call) {
  UpdateBody f("Lion", {"exp_avg"}, call);
  const auto [w, g] = decay(f, true);
  const Term direction = sign(mean(f.slot("exp_avg"), f.attribute("beta1"), g));
  f.next("w", w - direction * f.rate());
  f.next("exp_avg", mean(f.slot("exp_avg"), f.attribute("beta2"), g));
  return f.text();
}

// d = g - the gradient before, 0 in the first step      m' = β₁m + (1-β₁)g      u' = β₂u + (1-β₂)d
// n' = β₃n + (1-β₃)(g + β₂d)²      r = √n'/√(1-β₃ᵗ) + ε      s = lr/(1-β₁ᵗ) · m'/r + lr·β₂/(1-β₂ᵗ) · u'/r
// w' = (w - s) / (1 + lr·λ), or (1 - lr·λ)w - s with no_prox
FunctionText adan(const FunctionCall& call) {
  UpdateBody f("Adan", {"exp_avg", "exp_avg_diff", "exp_avg_sq", "neg_pre_grad"}, call);
  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), beta3 = f.attribute("beta3");
  const Term g = f.scaled_gradient(), t = f.step();
  const Term zero = f.tensor(0);
  const Term d = where(t > 1, g + f.slot("neg_pre_grad"), zero);
  const Term m = f.next("exp_avg", mean(f.slot("exp_avg"), beta1, g));
  const Term u = f.next("exp_avg_diff", mean(f.slot("exp_avg_diff"), beta2, d));
  const Term ahead = g + d * beta2;
  const Term n = f.next("exp_avg_sq", mean(f.slot("exp_avg_sq"), beta3, ahead * ahead));
  f.next("neg_pre_grad", zero - g);
  const Term root = sqrt(n) / sqrt(1 - pow(beta3, t)) + f.attribute("epsilon");
  const Term of_m = f.rate() / (1 - pow(beta1, t)), of_u = f.rate() * beta2 / (1 - pow(beta2, t));
  const bool is_proximal = !f.flag("no_prox");
  const Term moved = (is_proximal ? f.weight() : f.decayed_weight()) - m / root * of_m - u / root * of_u;
  f.next("w", is_proximal ? moved / (1 + f.rate() * f.attribute("weight_decay")) : moved);
  return f.text();
}

// w is y, between the sequence z of the optimizer and its average x, which is the result. Decay is taken at y.
// z' = z - lr·(g/(√(v'/(1-β₂ᵗ)) + ε) + λy)      x' = x + c(z' - x)      y' = z' + β₁(x' - z')
// c is the share of tʳ·max(lr)ᵖ in its sum over the steps. In the first step z is y.
FunctionText schedule_free_adamw(const FunctionCall& call) {
  UpdateBody f("ScheduleFreeAdamW", {"exp_avg_sq", "z", "weight_sum", "lr_max", "x"}, call);
  const Term beta2 = f.attribute("beta2"), t = f.step(), g = f.scaled_gradient(), y = f.weight();
  const Term v = f.next("exp_avg_sq", mean(f.slot("exp_avg_sq"), beta2, g * g));
  const Term adapted = g / (sqrt(v / (1 - pow(beta2, t))) + f.attribute("epsilon"));
  const Term direction = adapted + y * f.attribute("weight_decay");
  const Term largest = f.next("lr_max", max(f.slot("lr_max"), f.rate()));
  const Term counts = pow(largest, f.tensor(f.attribute("weight_lr_power"))) * pow(t, f.attribute("r"));
  const Term sum = f.next("weight_sum", f.slot("weight_sum") + counts);
  const Term share = where(sum > 0, counts / sum, 0);
  const Term z = f.next("z", where(t > 1, f.slot("z"), y) - direction * f.rate());
  const Term x = f.next("x", f.slot("x") + (z - f.slot("x")) * share);
  f.next("w", z + (x - z) * f.attribute("beta1"));
  return f.text();
}

// ---- Adafactor (Shazeer and Stern 2018)

Term root_mean_square(const Term& x) { return sqrt(reduce_mean(x * x, {}, /*keepdims=*/false)); }

// s = t^decay      r' = r + s(mean of g² over columns - r)      c' of rows alike      v = r'c' / mean(r')
// u = g / √max(v, ε₁²)      w' = (1 - lr·λ)w - max(ε₂, rms(w))·min(lr, 1/√t) / max(1, rms(u)/d) · u
FunctionText adafactor(const FunctionCall& call) {
  UpdateBody f("Adafactor", {"row_var", "col_var", "variance"}, call);
  const bool factored = !f.has("variance");
  const bool given = !f.is_zero("epsilon1");
  const bool is_double = f.weight_type().dtype == DType::kDouble;
  if (!given) f.depends_on(name(f.weight_type().dtype));
  const Term epsilon =
      given ? f.attribute("epsilon1")
            : f.number(is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon());
  const Term g = f.scaled_gradient(), square = g * g, share = pow(f.step(), f.attribute("beta2_decay"));
  const auto average = [&](const char* slot, const Term& x) {
    return f.next(slot, f.slot(slot) + (x - f.slot(slot)) * share);
  };
  Term variance = f.slot("variance");
  if (factored) {
    const Term rows = average("row_var", reduce_mean(square, {-1}));
    const Term columns = average("col_var", reduce_mean(square, {-2}));
    variance = rows * columns / max(reduce_mean(rows, {-2}), epsilon);
  } else {
    variance = average("variance", square);
  }
  const Term update = g / sqrt(max(variance, epsilon * epsilon));
  const Term size = max(root_mean_square(f.weight()), f.attribute("epsilon2"));
  const Term rate = size * min(f.rate(), 1 / sqrt(f.step()));
  const Term clipped = max(root_mean_square(update) / f.attribute("d"), 1);
  f.next("w", f.decayed_weight() - update * (rate / clipped));
  return f.text();
}

}  // namespace

std::vector<FunctionRow> adaptive_update_functions() {
  const std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"},
                                 three = {moments[0], moments[1], "max_exp_avg_sq"};
  return {adam_row("Adam", moments, false),
          adam_row("AdamW", moments, true),
          adam_row("Amsgrad", three, false),
          adam_row("AmsgradW", three, true),
          {"HfAdamW", hf_adamw},
          {"SparseAdam", sparse_adam},
          {"RmsProp", rms_prop},
          {"Adagrad", adagrad},
          {"Adadelta", adadelta},
          {"Adamax", adamax},
          {"NAdam", nadam},
          {"RAdam", radam},
          {"Lion", lion},
          {"Adan", adan},
          {"ScheduleFreeAdamW", schedule_free_adamw},
          {"Adafactor", adafactor}};
}

}  // namespace onnx_train
