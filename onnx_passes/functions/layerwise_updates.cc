// Updates that look at a weight as a whole: at its norm, or as a matrix.
#include "onnx_passes/functions/update_body.h"

namespace onnx_train {
namespace {

Term norm(const Term& x) { return reduce("ReduceL2", x, {}, /*keepdims=*/false); }

// x where norms `a` and `b` are above 0, else 1.
Term if_both(const Term& a, const Term& b, const Term& x) { return where(a > 0, where(b > 0, x, 1), 1); }

// Weights that do not decay are left out of the layer-wise rule, as timm leaves them out.
bool adapts(UpdateBody& f) {
  const bool decays = !f.is_zero("weight_decay");
  return f.flag("always_adapt") || decays;
}

// u = m̂/(√v̂ + ε) + λw      w' = w - lr · |w|/|u| · u      (You et al. 2020; timm.optim.Lamb)
FunctionText lamb(const FunctionCall& call) {
  UpdateBody f("Lamb", {"exp_avg", "exp_avg_sq"}, call);
  const Term beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step(), g = f.scaled_gradient();
  const Term m = f.next("exp_avg", f.slot("exp_avg") * beta1 + g * (1 - beta1));
  const Term v = f.next("exp_avg_sq", f.slot("exp_avg_sq") * beta2 + g * g * (1 - beta2));
  const Term root = sqrt(v) / sqrt(1 - pow(beta2, t)) + f.attribute("epsilon");
  Term update = m / (1 - pow(beta1, t)) / root + f.weight() * f.attribute("weight_decay");
  if (adapts(f)) {
    const Term of_w = norm(f.weight()), of_u = norm(update);
    update = update * if_both(of_w, of_u, of_w / of_u);
  }
  f.next("w", f.weight() - update * f.rate());
  return f.text();
}

// d = (g + λw) · η|w| / (|g| + λ|w| + ε), then SGD with momentum      (You et al. 2017; timm.optim.Lars)
FunctionText lars(const FunctionCall& call) {
  UpdateBody f("Lars", {"momentum_buffer"}, call);
  Term direction = f.scaled_gradient();
  if (adapts(f)) {
    const Term of_w = norm(f.weight()), of_g = norm(direction), lambda = f.attribute("weight_decay");
    const Term ratio = of_w * f.attribute("trust_coeff") / (of_g + of_w * lambda + f.attribute("epsilon"));
    direction = (direction + f.weight() * lambda) * if_both(of_w, of_g, ratio);
  }
  if (f.has("momentum_buffer")) {
    const Term momentum = f.attribute("momentum");
    const Term share = where(f.step() > 1, 1 - f.attribute("dampening"), 1);
    const Term buffer = f.next("momentum_buffer", f.slot("momentum_buffer") * momentum + direction * share);
    direction = f.flag("nesterov") ? direction + buffer * momentum : buffer;
  }
  f.next("w", f.weight() - direction * f.rate());
  return f.text();
}

// The orthogonal matrix next to `x`, by steps of Newton and Schulz with the coefficients of Jordan et al. 2024:
// x ← ax + (bxxᵀ + c(xxᵀ)²)x. Tall matrices are transposed, since xxᵀ then is the smaller product.
Term orthogonal(UpdateBody& f, Term x, int64_t steps, bool tall) {
  constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
  const auto transposed = [](const Term& y) { return transpose(y, {1, 0}); };
  x = x / max(norm(x), f.attribute("epsilon"));
  if (tall) x = transposed(x);
  for (int64_t i = 0; i < steps; ++i) {
    const Term gram = matmul(x, transposed(x));
    const Term polynomial = kB * gram + kC * matmul(gram, gram);
    x = kA * x + matmul(polynomial, x);
  }
  return tall ? transposed(x) : x;
}

// b' = μb + (1-μ)g      u = orthogonal((1-μ)g + μb' with nesterov, else b')      w' = (1 - lr·λ)w - lr·scale·u
// A filter is a matrix of its outputs times all else.
FunctionText muon(const FunctionCall& call) {
  UpdateBody f("Muon", {"momentum_buffer"}, call);
  const Term mu = f.attribute("momentum"), g = f.scaled_gradient();
  const Term buffer = f.next("momentum_buffer", f.slot("momentum_buffer") * mu + g * (1 - mu));
  Term x = f.flag("nesterov") ? g * (1 - mu) + buffer * mu : buffer;
  const TensorType& type = f.weight_type();
  const bool is_matrix = type.has_rank() && type.rank() == 2;
  bool tall = false;
  if (type.is_static()) {
    const int64_t rows = type.shape()[0];
    tall = rows * rows > num_elements(type.shape());
  }
  if (tall) f.depends_on("tall");
  if (!is_matrix) f.depends_on("filter"), x = f.op("Flatten", {x}, "axis = 1");
  x = orthogonal(f, x, f.count("ns_steps"), tall);
  if (!is_matrix) x = f.in_shape_of_weight(x);
  f.next("w", f.decayed_weight() - x * (f.rate() * f.attribute("rate_scale")));
  return f.text();
}

}  // namespace

std::vector<FunctionRow> layerwise_update_functions() { return {{"Lamb", lamb}, {"Lars", lars}, {"Muon", muon}}; }

}  // namespace onnx_train
