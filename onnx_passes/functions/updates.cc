#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Hyper-parameters are float64 tensors: an attribute of type float would turn 0.999 into 0.99900001. Scalars are
// computed in float64 and rounded once, as PyTorch computes them; `step` counts the updates, this one included, from 1.

// g ← g·scale + decay·w
constexpr const char* kGradient = R"(
    scale = CastLike (grad_scale, w)
    g_scaled = Mul (g, scale)
    weight_decay = Constant <value: tensor = @weight_decay> ()
    decay = CastLike (weight_decay, w)
    w_decay = Mul (w, decay)
    g_used = Add (g_scaled, w_decay)
)";

// b' = momentum·b + d·g      d: 1 in the first step (b is 0), then 1 - dampening
// w' = w - lr·(g + momentum·b' with nesterov, else b')
constexpr const char* kMomentum = R"(
    one_double = Constant <value = double {1.0}> ()
    momentum_double = Constant <value: tensor = @momentum> ()
    momentum = CastLike (momentum_double, w)
    dampening = Constant <value: tensor = @dampening> ()
    undamped = Sub (one_double, dampening)
    first_step = Constant <value = int64 {1}> ()
    is_first = Equal (step, first_step)
    share_double = Where (is_first, one_double, undamped)
    share = CastLike (share_double, w)
    buffer_kept = Mul (momentum_buffer, momentum)
    g_shared = Mul (g_used, share)
    next_momentum_buffer = Add (buffer_kept, g_shared)
)";

constexpr const char* kNesterov = R"(
    buffer_ahead = Mul (next_momentum_buffer, momentum)
    direction = Add (g_used, buffer_ahead)
)";

std::string descend(const char* direction) {
  return concat(R"(
    rate = CastLike (learning_rate, w)
    change = Mul ()",
                direction, R"(, rate)
    next_w = Sub (w, change)
})");
}

FunctionText sgd(const FunctionCall& call) {
  const bool has_momentum = call.inputs.at(2).value() != nullptr;
  bool nesterov = false;
  for (const Attr& a : call.attrs) nesterov = nesterov || (a.name == "nesterov" && std::get<int64_t>(a.value) != 0);
  const std::string head = "Sgd <momentum, dampening, nesterov, weight_decay> ";
  if (!has_momentum) {
    return {concat(head, "(w, g, unused, step, learning_rate, grad_scale) => (next_w) {", kGradient, descend("g_used")),
            "plain"};
  }
  return {
      concat(head, "(w, g, momentum_buffer, step, learning_rate, grad_scale) => (next_w, next_momentum_buffer) {",
             kGradient, kMomentum, nesterov ? kNesterov : "", descend(nesterov ? "direction" : "next_momentum_buffer")),
      nesterov ? "nesterov" : "momentum"};
}

// m' = β₁m + (1-β₁)g      v' = β₂v + (1-β₂)g²
// w' = w - lr/(1-β₁ᵗ) · m' / (√v'/√(1-β₂ᵗ) + ε)
constexpr const char* kMoments = R"(
    one_double = Constant <value = double {1.0}> ()
    t = Cast <to = 11> (step)
    beta1_double = Constant <value: tensor = @beta1> ()
    beta2_double = Constant <value: tensor = @beta2> ()
    rest1_double = Sub (one_double, beta1_double)
    rest2_double = Sub (one_double, beta2_double)
    beta1 = CastLike (beta1_double, w)
    beta2 = CastLike (beta2_double, w)
    rest1 = CastLike (rest1_double, w)
    rest2 = CastLike (rest2_double, w)
    beta1_to_t = Pow (beta1_double, t)
    beta2_to_t = Pow (beta2_double, t)
    correction1 = Sub (one_double, beta1_to_t)
    correction2 = Sub (one_double, beta2_to_t)
    root_correction2 = Sqrt (correction2)
    rate_double = Cast <to = 11> (learning_rate)
    step_size_double = Div (rate_double, correction1)
    step_size = CastLike (step_size_double, w)
    v_scale = CastLike (root_correction2, w)
    epsilon_double = Constant <value: tensor = @epsilon> ()
    epsilon = CastLike (epsilon_double, w)
    m_kept = Mul (exp_avg, beta1)
    g_rest = Mul (g_used, rest1)
    next_exp_avg = Add (m_kept, g_rest)
    v_kept = Mul (exp_avg_sq, beta2)
    g_square = Mul (g_used, g_used)
    g_square_rest = Mul (g_square, rest2)
    next_exp_avg_sq = Add (v_kept, g_square_rest)
    root = Sqrt (next_exp_avg_sq)
    root_corrected = Div (root, v_scale)
    denominator = Add (root_corrected, epsilon)
    ratio = Div (next_exp_avg, denominator)
    change = Mul (ratio, step_size)
)";

constexpr const char* kAdamSignature =
    "<beta1, beta2, epsilon, weight_decay> (w, g, exp_avg, exp_avg_sq, step, learning_rate, grad_scale) => (next_w, "
    "next_exp_avg, next_exp_avg_sq) {";

FunctionText adam(const FunctionCall&) {
  return {concat("Adam ", kAdamSignature, kGradient, kMoments, "    next_w = Sub (w, change)\n}"), ""};
}

// w is multiplied by 1 - lr·decay instead of adding decay·w to the gradient.
FunctionText adamw(const FunctionCall&) {
  return {concat("AdamW ", kAdamSignature, R"(
    scale = CastLike (grad_scale, w)
    g_used = Mul (g, scale)
    weight_decay = Constant <value: tensor = @weight_decay> ()
    decay_rate = Cast <to = 11> (learning_rate)
    decay = Mul (decay_rate, weight_decay)
    decay_one = Constant <value = double {1.0}> ()
    kept_double = Sub (decay_one, decay)
    kept = CastLike (kept_double, w)
    w_used = Mul (w, kept)
)",
                 kMoments, "    next_w = Sub (w_used, change)\n}"),
          ""};
}

// a' = w in the first step, then a + (1-d)(w - a)      as torch.optim.swa_utils.get_ema_multi_avg_fn
constexpr const char* kMovingAverage = R"(MovingAverage <decay> (average, w, step) => (next_average) {
    one_double = Constant <value = double {1.0}> ()
    decay_double = Constant <value: tensor = @decay> ()
    rest_double = Sub (one_double, decay_double)
    rest = CastLike (rest_double, w)
    first_step = Constant <value = int64 {1}> ()
    is_first = Equal (step, first_step)
    distance = Sub (w, average)
    change = Mul (distance, rest)
    moved = Add (average, change)
    next_average = Where (is_first, w, moved)
})";

// a' = w before step start; a + (w - a) / (k + 1) where k = (step - start) / every is whole; else a: the mean of the
// weights after the steps start, start + every, ..        as torch.optim.swa_utils.AveragedModel, which is updated at
// these steps
constexpr const char* kMeanOfWeights = R"(MeanOfWeights <start, every> (average, w, step) => (next_average) {
    start_step = Constant <value: tensor = @start> ()
    period = Constant <value: tensor = @every> ()
    since = Sub (step, start_step)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    remainder = Mod (since, period)
    is_due = Equal (remainder, zero)
    before = Div (since, period)
    count_int = Add (before, one)
    least_count = Max (count_int, one)
    count = CastLike (least_count, w)
    distance = Sub (w, average)
    change = Div (distance, count)
    moved = Add (average, change)
    kept = Where (is_due, moved, average)
    is_early = Less (since, zero)
    next_average = Where (is_early, w, kept)
})";

// norm = √(Σᵢ Σ gᵢ²), in float32, or in float64 where a gradient is.
FunctionText global_norm(const FunctionCall& call) {
  DType dtype = DType::kFloat;
  for (const Var& g : call.inputs) dtype = g.dtype() == DType::kDouble ? DType::kDouble : dtype;
  std::string inputs, squares, lines;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const char* comma = i ? ", " : "";
    inputs += concat(comma, "g", i);
    squares += concat(comma, "s", i);
    lines += concat("    c", i, " = Cast <to = ", static_cast<int>(dtype), "> (g", i, ")\n    s", i,
                    " = ReduceSumSquare <keepdims = 0> (c", i, ")\n");
  }
  return {concat("GlobalNorm (", inputs, ") => (norm) {\n", lines, "    sum = Sum (", squares,
                 ")\n    norm = Sqrt (sum)\n}"),
          concat(name(dtype), call.inputs.size())};
}

}  // namespace

std::vector<FunctionRow> update_functions() {
  return {{"Sgd", sgd},
          {"Adam", adam},
          {"AdamW", adamw},
          {"GlobalNorm", global_norm},
          function("MovingAverage", kMovingAverage),
          function("MeanOfWeights", kMeanOfWeights)};
}

}  // namespace onnx_train
