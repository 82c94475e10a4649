// Updates that scale each element by its own history. Formulas and names of slots are those of torch.optim, Lion's are
// of Chen et al. 2023.
#include <cmath>
#include <limits>

#include "onnx_passes/functions/update_body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

UpdateTerm mean(const UpdateTerm& old, const UpdateTerm& share, const UpdateTerm& x) {
  return old * share + x * (1 - share);
}

// w with decay apart from the gradient, and the gradient without it; or w, and the gradient with it.
struct Decayed {
  UpdateTerm w, g;
};
Decayed decay(UpdateBody& f, bool decoupled) {
  if (!decoupled) return {f.weight(), f.gradient()};
  const UpdateTerm w = f.decayed_weight();
  return {w, f.scaled_gradient()};
}

// The moments of Adam's relatives, and 1 - βᵗ.
struct AdamMoments {
  UpdateTerm m, v, correction1, correction2;
};
AdamMoments moments(UpdateBody& f, const UpdateTerm& g) {
  const UpdateTerm beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const UpdateTerm m = f.next("exp_avg", mean(f.slot("exp_avg"), beta1, g));
  const UpdateTerm v = f.next("exp_avg_sq", mean(f.slot("exp_avg_sq"), beta2, g * g));
  return {m, v, 1 - pow(beta1, t), 1 - pow(beta2, t)};
}

// v̂' = max(v̂, v')      w' = w - lr/(1-β₁ᵗ) · m' / (√v̂'/√(1-β₂ᵗ) + ε)
FunctionText amsgrad(const char* op, bool decoupled, const FunctionCall& call) {
  UpdateBody f(op, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, call);
  const auto [w, g] = decay(f, decoupled);
  const auto [m, v, correction1, correction2] = moments(f, g);
  const UpdateTerm most = f.next("max_exp_avg_sq", max(f.slot("max_exp_avg_sq"), v));
  const UpdateTerm root = sqrt(most) / sqrt(correction2) + f.attribute("epsilon");
  f.next("w", w - m / root * (f.rate() / correction1));
  return f.text();
}

// m' = m + (1-β₁)(g - m)      v' = v + (1-β₂)(g² - v)      w' = w - lr·√(1-β₂ᵗ)/(1-β₁ᵗ) · m' / (√v' + ε)
// in the rows whose gradient is not zero everywhere. All other rows keep weight and moments.
FunctionText sparse_adam(const FunctionCall& call) {
  UpdateBody f("SparseAdam", {"exp_avg", "exp_avg_sq"}, call);
  const UpdateTerm g = f.scaled_gradient(), zero = f.as_tensor(f.number(0));
  std::string axes;
  for (int64_t i = 1; i < f.weight_type().rank(); ++i) axes += concat(i > 1 ? ", " : "", i);
  f.depends_on(concat("rank", f.weight_type().rank()));
  const UpdateTerm row_axes = f.constant("row_axes", concat("int64[", f.weight_type().rank() - 1, "] {", axes, "}"));
  const UpdateTerm is_idle = f.op("Equal", {f.op("ReduceL1", {f.raw_gradient(), row_axes}, "keepdims = 1"), zero});
  const auto where_read = [&](const UpdateTerm& change) { return f.op("Where", {is_idle, zero, change}); };
  const UpdateTerm beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step();
  const auto moment = [&](const char* slot, const UpdateTerm& beta, const UpdateTerm& x) {
    return f.next(slot, f.slot(slot) + where_read((x - f.slot(slot)) * (1 - beta)));
  };
  const UpdateTerm m = moment("exp_avg", beta1, g), v = moment("exp_avg_sq", beta2, g * g);
  const UpdateTerm step_size = f.rate() * sqrt(1 - pow(beta2, t)) / (1 - pow(beta1, t));
  f.next("w", f.weight() - where_read(m / (sqrt(v) + f.attribute("epsilon")) * step_size));
  return f.text();
}

// v' = αv + (1-α)g²      a' = αa + (1-α)g      d = g / (√(v' - a'²) + ε)      b' = μb + d      w' = w - lr·b'
FunctionText rms_prop(const FunctionCall& call) {
  UpdateBody f("RmsProp", {"square_avg", "momentum_buffer", "grad_avg"}, call);
  const UpdateTerm alpha = f.attribute("alpha"), g = f.gradient();
  UpdateTerm square = f.next("square_avg", mean(f.slot("square_avg"), alpha, g * g));
  if (f.has("grad_avg")) {
    const UpdateTerm average = f.next("grad_avg", mean(f.slot("grad_avg"), alpha, g));
    square = square - average * average;
  }
  UpdateTerm direction = g / (sqrt(square) + f.attribute("epsilon"));
  if (f.has("momentum_buffer")) {
    direction = f.next("momentum_buffer", f.slot("momentum_buffer") * f.attribute("momentum") + direction);
  }
  f.next("w", f.weight() - direction * f.rate());
  return f.text();
}

// s' = s + g²      w' = w - lr / (1 + (t-1)·decay) · g / (√s' + ε)
FunctionText adagrad(const FunctionCall& call) {
  UpdateBody f("Adagrad", {"sum"}, call);
  const UpdateTerm g = f.gradient();
  const UpdateTerm sum = f.next("sum", f.slot("sum") + g * g);
  const UpdateTerm rate = f.rate() / (1 + (f.step() - 1) * f.attribute("lr_decay"));
  f.next("w", f.weight() - g / (sqrt(sum) + f.attribute("epsilon")) * rate);
  return f.text();
}

// v' = ρv + (1-ρ)g²      d = g · √(u+ε) / √(v'+ε)      u' = ρu + (1-ρ)d²      w' = w - lr·d
FunctionText adadelta(const FunctionCall& call) {
  UpdateBody f("Adadelta", {"square_avg", "acc_delta"}, call);
  const UpdateTerm rho = f.attribute("rho"), epsilon = f.attribute("epsilon"), g = f.gradient();
  const UpdateTerm square = f.next("square_avg", mean(f.slot("square_avg"), rho, g * g));
  const UpdateTerm delta = sqrt(f.slot("acc_delta") + epsilon) / sqrt(square + epsilon) * g;
  f.next("acc_delta", mean(f.slot("acc_delta"), rho, delta * delta));
  f.next("w", f.weight() - delta * f.rate());
  return f.text();
}

// m' = β₁m + (1-β₁)g      u' = max(β₂u, |g| + ε)      w' = w - lr/(1-β₁ᵗ) · m'/u'
FunctionText adamax(const FunctionCall& call) {
  UpdateBody f("Adamax", {"exp_avg", "exp_inf"}, call);
  const UpdateTerm beta1 = f.attribute("beta1"), g = f.gradient();
  const UpdateTerm m = f.next("exp_avg", mean(f.slot("exp_avg"), beta1, g));
  const UpdateTerm u =
      f.next("exp_inf", max(f.slot("exp_inf") * f.attribute("beta2"), abs(g) + f.attribute("epsilon")));
  f.next("w", f.weight() - m / u * (f.rate() / (1 - pow(beta1, f.step()))));
  return f.text();
}

// μₜ = β₁(1 - 0.96^(tψ)/2)      Π' = Π·μₜ      r = √(v'/(1-β₂ᵗ)) + ε
// w' = w - lr·(1-μₜ)/(1-Π') · g/r - lr·μₜ₊₁/(1-Π'·μₜ₊₁) · m'/r
FunctionText nadam(const FunctionCall& call) {
  UpdateBody f("NAdam", {"exp_avg", "exp_avg_sq", "mu_product"}, call);
  const auto [w, g] = decay(f, f.flag("decoupled"));
  const auto [m, v, correction1, correction2] = moments(f, g);
  const auto momentum = [&](const UpdateTerm& t) {
    return f.attribute("beta1") * (1 - 0.5 * pow(f.number(0.96), t * f.attribute("momentum_decay")));
  };
  const UpdateTerm mu = momentum(f.step()), mu_next = momentum(f.step() + 1);
  const UpdateTerm product = f.next("mu_product", f.slot("mu_product") * mu);
  const UpdateTerm root = sqrt(v / correction2) + f.attribute("epsilon");
  const UpdateTerm one = f.as_tensor(f.number(1));
  const UpdateTerm of_g = f.rate() * (1 - mu) / (one - product), of_m = f.rate() * mu_next / (one - product * mu_next);
  f.next("w", w - g / root * of_g - m / root * of_m);
  return f.text();
}

// ρ = 2/(1-β₂) - 1      ρₜ = ρ - 2tβ₂ᵗ/(1-β₂ᵗ)      m̂ = m'/(1-β₁ᵗ)
// w' = w - lr·m̂·√((ρₜ-4)(ρₜ-2)ρ / ((ρ-4)(ρ-2)ρₜ)) · √(1-β₂ᵗ)/(√v'+ε) where ρₜ > 5, else w - lr·m̂
FunctionText radam(const FunctionCall& call) {
  UpdateBody f("RAdam", {"exp_avg", "exp_avg_sq"}, call);
  const auto [w, g] = decay(f, f.flag("decoupled"));
  const auto [m, v, correction1, correction2] = moments(f, g);
  const UpdateTerm beta2 = f.attribute("beta2"), t = f.step();
  const UpdateTerm most = 2 / (1 - beta2) - 1;
  const UpdateTerm length = most - 2 * t * pow(beta2, t) / correction2;
  const UpdateTerm square = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
  const UpdateTerm rectified = sqrt(max(square, f.number(0)) * correction2);
  const UpdateTerm is_plain = where_above(length, 5, f.number(0), f.number(1));
  const UpdateTerm adapted = where_above(length, 5, rectified, f.number(0));
  const UpdateTerm factor = adapted / (sqrt(v) + f.attribute("epsilon")) + is_plain;
  f.next("w", w - m * (f.rate() / correction1) * factor);
  return f.text();
}

// c = β₁m + (1-β₁)g      w' = (1 - lr·λ)w - lr·sign(c)      m' = β₂m + (1-β₂)g
FunctionText lion(const FunctionCall& call) {
  UpdateBody f("Lion", {"exp_avg"}, call);
  const auto [w, g] = decay(f, true);
  const UpdateTerm direction = f.op("Sign", {mean(f.slot("exp_avg"), f.attribute("beta1"), g)});
  f.next("w", w - direction * f.rate());
  f.next("exp_avg", mean(f.slot("exp_avg"), f.attribute("beta2"), g));
  return f.text();
}

// w is y, between the sequence z of the optimizer and its average x, which is the result. Decay is taken at y.
// z' = z - lr·(g/(√(v'/(1-β₂ᵗ)) + ε) + λy)      x' = x + c(z' - x)      y' = z' + β₁(x' - z')
// c is the share of tʳ·max(lr)ᵖ in its sum over the steps. In the first step z is y.
FunctionText schedule_free_adamw(const FunctionCall& call) {
  UpdateBody f("ScheduleFreeAdamW", {"exp_avg_sq", "z", "weight_sum", "lr_max", "x"}, call);
  const UpdateTerm beta2 = f.attribute("beta2"), t = f.step(), g = f.scaled_gradient(), y = f.weight();
  const UpdateTerm v = f.next("exp_avg_sq", mean(f.slot("exp_avg_sq"), beta2, g * g));
  const UpdateTerm adapted = g / (sqrt(v / (1 - pow(beta2, t))) + f.attribute("epsilon"));
  const UpdateTerm direction = adapted + y * f.attribute("weight_decay");
  const UpdateTerm largest = f.next("lr_max", max(f.slot("lr_max"), f.rate()));
  const UpdateTerm counts = pow(largest, f.as_tensor(f.attribute("weight_lr_power"))) * pow(t, f.attribute("r"));
  const UpdateTerm sum = f.next("weight_sum", f.slot("weight_sum") + counts);
  const UpdateTerm share = where_above(sum, 0, counts / sum, f.as_tensor(f.number(0)));
  const UpdateTerm z = f.next("z", where_above(t, 1, f.slot("z"), y) - direction * f.rate());
  const UpdateTerm x = f.next("x", f.slot("x") + (z - f.slot("x")) * share);
  f.next("w", z + (x - z) * f.attribute("beta1"));
  return f.text();
}

// ---- Adafactor (Shazeer and Stern 2018)

UpdateTerm root_mean_square(UpdateBody& f, const UpdateTerm& x) {
  return sqrt(f.op("ReduceMean", {x * x}, "keepdims = 0"));
}

UpdateTerm mean_over(UpdateBody& f, const UpdateTerm& x, int axis) {
  const std::string name = axis == -1 ? "last_axis" : "axis_before";
  const UpdateTerm axes = f.constant(name, concat("int64[1] {", axis, "}"));
  return f.op("ReduceMean", {x, axes}, "keepdims = 1");
}

// s = t^decay      r' = r + s(mean of g² over columns - r)      c' of rows alike      v = r'c' / mean(r')
// u = g / √max(v, ε₁²)      w' = (1 - lr·λ)w - max(ε₂, rms(w))·min(lr, 1/√t) / max(1, rms(u)/d) · u
FunctionText adafactor(const FunctionCall& call) {
  UpdateBody f("Adafactor", {"row_var", "col_var", "variance"}, call);
  const bool factored = !f.has("variance");
  const bool given = !f.is_zero("epsilon1");
  const bool is_double = f.weight_type().dtype == DType::kDouble;
  if (!given) f.depends_on(name(f.weight_type().dtype));
  const UpdateTerm epsilon =
      given ? f.attribute("epsilon1")
            : f.number(is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon());
  const UpdateTerm g = f.scaled_gradient(), square = g * g, share = pow(f.step(), f.attribute("beta2_decay"));
  const auto average = [&](const char* slot, const UpdateTerm& x) {
    return f.next(slot, f.slot(slot) + (x - f.slot(slot)) * share);
  };
  UpdateTerm variance = f.slot("variance");
  if (factored) {
    const UpdateTerm rows = average("row_var", mean_over(f, square, -1));
    const UpdateTerm columns = average("col_var", mean_over(f, square, -2));
    variance = rows * columns / max(mean_over(f, rows, -2), epsilon);
  } else {
    variance = average("variance", square);
  }
  const UpdateTerm update = g / sqrt(max(variance, epsilon * epsilon));
  const UpdateTerm size = max(root_mean_square(f, f.weight()), f.attribute("epsilon2"));
  const UpdateTerm rate = size * min(f.rate(), 1 / sqrt(f.step()));
  const UpdateTerm clipped = max(root_mean_square(f, update) / f.attribute("d"), f.number(1));
  f.next("w", f.decayed_weight() - update * (rate / clipped));
  return f.text();
}

}  // namespace

std::vector<FunctionRow> adaptive_update_functions() {
  return {{"Amsgrad", [](const FunctionCall& call) { return amsgrad("Amsgrad", false, call); }},
          {"AmsgradW", [](const FunctionCall& call) { return amsgrad("AmsgradW", true, call); }},
          {"SparseAdam", sparse_adam},
          {"RmsProp", rms_prop},
          {"Adagrad", adagrad},
          {"Adadelta", adadelta},
          {"Adamax", adamax},
          {"NAdam", nadam},
          {"RAdam", radam},
          {"Lion", lion},
          {"ScheduleFreeAdamW", schedule_free_adamw},
          {"Adafactor", adafactor}};
}

}  // namespace onnx_train
