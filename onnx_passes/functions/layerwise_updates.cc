// Updates that look at a weight as a whole: at its norm, or as a matrix.
#include "onnx_passes/functions/update_body.h"

namespace onnx_train {
namespace {

UpdateTerm norm(UpdateBody& f, const UpdateTerm& x) { return f.op("ReduceL2", {x}, "keepdims = 0"); }

// x where norms `a` and `b` are above 0, else 1.
UpdateTerm if_both(UpdateBody& f, const UpdateTerm& a, const UpdateTerm& b, const UpdateTerm& x) {
  const UpdateTerm one = f.as_tensor(f.number(1));
  return where_above(a, 0, where_above(b, 0, x, one), one);
}

// Weights that do not decay are left out of the layer-wise rule, as timm leaves them out.
bool adapts(UpdateBody& f) {
  const bool decays = !f.is_zero("weight_decay");
  return f.flag("always_adapt") || decays;
}

// u = m̂/(√v̂ + ε) + λw      w' = w - lr · |w|/|u| · u      (You et al. 2020; timm.optim.Lamb)
FunctionText lamb(const FunctionCall& call) {
  UpdateBody f("Lamb", {"exp_avg", "exp_avg_sq"}, call);
  const UpdateTerm beta1 = f.attribute("beta1"), beta2 = f.attribute("beta2"), t = f.step(), g = f.scaled_gradient();
  const UpdateTerm m = f.next("exp_avg", f.slot("exp_avg") * beta1 + g * (1 - beta1));
  const UpdateTerm v = f.next("exp_avg_sq", f.slot("exp_avg_sq") * beta2 + g * g * (1 - beta2));
  const UpdateTerm root = sqrt(v) / sqrt(1 - pow(beta2, t)) + f.attribute("epsilon");
  UpdateTerm update = m / (1 - pow(beta1, t)) / root + f.weight() * f.attribute("weight_decay");
  if (adapts(f)) {
    const UpdateTerm of_w = norm(f, f.weight()), of_u = norm(f, update);
    update = update * if_both(f, of_w, of_u, of_w / of_u);
  }
  f.next("w", f.weight() - update * f.rate());
  return f.text();
}

// d = (g + λw) · η|w| / (|g| + λ|w| + ε), then SGD with momentum      (You et al. 2017; timm.optim.Lars)
FunctionText lars(const FunctionCall& call) {
  UpdateBody f("Lars", {"momentum_buffer"}, call);
  UpdateTerm direction = f.scaled_gradient();
  if (adapts(f)) {
    const UpdateTerm of_w = norm(f, f.weight()), of_g = norm(f, direction), lambda = f.attribute("weight_decay");
    const UpdateTerm ratio = of_w * f.attribute("trust_coeff") / (of_g + of_w * lambda + f.attribute("epsilon"));
    direction = (direction + f.weight() * lambda) * if_both(f, of_w, of_g, ratio);
  }
  if (f.has("momentum_buffer")) {
    const UpdateTerm momentum = f.attribute("momentum");
    const UpdateTerm share = where_above(f.step(), 1, 1 - f.attribute("dampening"), f.number(1));
    const UpdateTerm buffer = f.next("momentum_buffer", f.slot("momentum_buffer") * momentum + direction * share);
    direction = f.flag("nesterov") ? direction + buffer * momentum : buffer;
  }
  f.next("w", f.weight() - direction * f.rate());
  return f.text();
}

// The orthogonal matrix next to `x`, by steps of Newton and Schulz with the coefficients of Jordan et al. 2024:
// x ← ax + (bxxᵀ + c(xxᵀ)²)x. Tall matrices are transposed, since xxᵀ then is the smaller product.
UpdateTerm orthogonal(UpdateBody& f, UpdateTerm x, int64_t steps, bool tall) {
  constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
  const auto transposed = [&](const UpdateTerm& y) { return f.op("Transpose", {y}, "perm = [1, 0]"); };
  const auto product = [&](const UpdateTerm& a, const UpdateTerm& b) { return f.op("MatMul", {a, b}); };
  x = x / max(norm(f, x), f.as_tensor(f.attribute("epsilon")));
  if (tall) x = transposed(x);
  for (int64_t i = 0; i < steps; ++i) {
    const UpdateTerm gram = product(x, transposed(x));
    const UpdateTerm polynomial = f.number(kB) * gram + f.number(kC) * product(gram, gram);
    x = f.number(kA) * x + product(polynomial, x);
  }
  return tall ? transposed(x) : x;
}

// b' = μb + (1-μ)g      u = orthogonal((1-μ)g + μb' with nesterov, else b')      w' = (1 - lr·λ)w - lr·scale·u
// A filter is a matrix of its outputs times all else.
FunctionText muon(const FunctionCall& call) {
  UpdateBody f("Muon", {"momentum_buffer"}, call);
  const UpdateTerm mu = f.attribute("momentum"), g = f.scaled_gradient();
  const UpdateTerm buffer = f.next("momentum_buffer", f.slot("momentum_buffer") * mu + g * (1 - mu));
  UpdateTerm x = f.flag("nesterov") ? g * (1 - mu) + buffer * mu : buffer;
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
  if (!is_matrix) x = f.op("Reshape", {x, f.shape_of_weight()});
  f.next("w", f.decayed_weight() - x * (f.rate() * f.attribute("rate_scale")));
  return f.text();
}

}  // namespace

std::vector<FunctionRow> layerwise_update_functions() { return {{"Lamb", lamb}, {"Lars", lars}, {"Muon", muon}}; }

}  // namespace onnx_train
