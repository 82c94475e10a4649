// Losses of distributions: x are logarithms of probabilities, rates, means or logits, t the target.
#include <numbers>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

LossResult kl_div(TermBuilder& t) {
  const Var x = t.x(), target = t.argument(1, x);
  Var losses;
  if (t.flag("log_target")) {
    const Var p = exp(target);
    losses = p * (target - x);
  } else {
    const Var zero = t.b().scalar(x.dtype(), 0), absent = equal(target, zero);
    const Var product = target * log(where(absent, t.b().scalar(x.dtype(), 1), target));
    const Var entropy = where(absent, zero, product);
    losses = entropy - target * x;
  }
  return t.reduced(x, {losses, "elements", all_axes(x)});
}

LossResult poisson_nll(TermBuilder& t) {
  const Var x = t.x(), target = t.argument(1, x);
  const bool is_log = t.flag("log_input");
  const Var rate = is_log ? exp(x) : x, log_rate = is_log ? x : log(x + t.number("eps"));
  Var losses = rate - target * log_rate;
  if (t.flag("full")) {  // log t! by Stirling's formula
    const Var large = target > 1.0, n = where(large, target, t.b().scalar(x.dtype(), 1));
    const Var leading = n * log(n) - n, stirling = leading + 0.5 * log(2 * std::numbers::pi * n);
    losses = losses + where(large, stirling, t.b().scalar(x.dtype(), 0));
  }
  return t.reduced(x, {losses, "elements", all_axes(x)});
}

// The variance is at least eps in the value, and keeps its slope, as in PyTorch. One that is negative gives NaN.
LossResult gaussian_nll(TermBuilder& t) {
  const Var x = t.x(), v = t.argument(1, x), d = x - t.argument(2, x);
  const double eps = t.number("eps");
  const Var is_valid = v >= 0.0, small = logical_and(is_valid, v < eps);
  const Var lift = where(small, eps - v, t.b().scalar(v.dtype(), 0));
  const Var variance = v + call(t.b(), "StopGradient", {lift});
  const Var log_variance = log(variance);
  Var losses = (log_variance + d * d / variance) * 0.5;
  if (t.flag("full")) losses = losses + 0.5 * std::log(2 * std::numbers::pi);
  return t.reduced(x, {losses, "elements", all_axes(x)});
}

LossResult distill(TermBuilder& t) {
  const Var x = t.x(), teacher = t.argument(1, x);
  const int64_t axis = t.integer("axis");
  const double temperature = t.number("temperature");
  const Var log_q = log_softmax(teacher / temperature, axis), log_p = log_softmax(x / temperature, axis);
  const Var q = exp(log_q), zero = t.b().scalar(x.dtype(), 0), absent = equal(q, zero);
  const Var terms = where(absent, zero, q * (log_q - log_p));
  const Var losses = reduce_sum(terms, std::vector<int64_t>{axis}, /*keepdims=*/false) * (temperature * temperature);
  return t.reduced(x, {losses, "positions", axes_without(x, axis)});
}

// Means over the pairs: of the rewards beta log(p / reference), and of their differences.
void add_rewards(Var chosen, Var rejected, LossResult* result) {
  Builder& b = chosen.builder();
  const Var pairs = cast(size(chosen), chosen.dtype()), divisor = max(pairs, b.scalar(chosen.dtype(), 1));
  const auto mean = [&](Var x) { return sum_all(x) / divisor; };
  result->metrics = {{"chosen", mean(chosen)}, {"rejected", mean(rejected)}, {"margins", mean(chosen - rejected)}};
  const Var right = sum_all(cast(chosen > rejected, DType::kFloat));
  result->accuracy_count = cast(pairs, DType::kFloat);
  result->accuracy = right / max(result->accuracy_count, b.scalar(DType::kFloat, 1));
}

LossResult dpo(TermBuilder& t) {
  const Var x = t.x(), rejected = t.argument(1, x);
  const bool free = t.flag("reference_free");
  const Var before = free ? Var() : t.argument(2, x), before_rejected = free ? Var() : t.argument(3, x);
  const double beta = t.number("beta"), smoothing = t.number("label_smoothing");
  const std::string type = t.choice("loss_type");
  if (smoothing > 0 && (type == "hinge" || type == "ipo"))
    fail("[Loss] dpo: loss_type=", type, " has no label_smoothing, which is of sigmoid and robust");
  if (smoothing >= 0.5 && type == "robust")
    fail("[Loss] dpo: the label_smoothing of loss_type=robust is below 0.5: at 0.5 preferences say nothing");
  const Var own = x - rejected, ratio = free ? own : own - (before - before_rejected);
  const Var m = ratio * beta;
  Var losses;
  if (type == "hinge") {
    losses = above_zero(1.0 - m);
  } else if (type == "ipo") {
    const Var distance = ratio - 1 / (2 * beta);
    losses = distance * distance;
  } else {
    const Var size = abs(m);
    losses = softplus(-m, size);  // -log σ(m)
    if (smoothing > 0) {
      const Var turned = softplus(m, size) * smoothing;
      losses = losses * (1 - smoothing);
      losses = type == "robust" ? (losses - turned) / (1 - 2 * smoothing) : losses + turned;
    }
  }
  LossResult result = t.reduced(x, {losses, "pairs", all_axes(x)});
  t.b().set_name("rewards/part");
  const Var of_chosen = (free ? x : x - before) * beta;
  const Var of_rejected = (free ? rejected : rejected - before_rejected) * beta;
  add_rewards(of_chosen, of_rejected, &result);
  return result;
}

}  // namespace

std::vector<LossRow> distribution_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const LossArgument target = {"target", kTarget, kSame};
  return {
      {"kl_div",
       {{"log_probabilities", kPrediction, kOwn}, target},
       {{"log_target", kNumber, 0, kTrueOrFalse, "the target holds logarithms of probabilities"},
        {"reduction", kReductionBatch, 0, kAnyNumber,
         "`mean`, `sum`, or `batchmean`: the divergence of each sample, averaged over the samples, which is what the "
         "mathematics means"}},
       kl_div,
       "t (log t - x), and 0 where t is 0",
       "elements; with `reduction=batchmean`, over samples",
       "As `torch.nn.functional.kl_div`"},
      {"distill",
       {{"logits", kPrediction, kOwn}, {"teacher", kTarget, kSame}},
       {{"temperature", kNumber, 2, kAboveZero, "by which both logits are divided"},
        {"axis", kNumber, 1, kWholeNumber, "the axis of the classes: 2 for predictions of rank 3, else 1"}},
       distill,
       "T² Σ_c q[c] (log q[c] - log p[c]), where p = softmax(logits / T), q = softmax(teacher / T), T the temperature",
       "positions: samples, tokens, pixels",
       "Hinton et al., Distilling the Knowledge in a Neural Network, 2015"},
      {"poisson_nll",
       {{"log_rates", kPrediction, kOwn}, target},
       {{"log_input", kNumber, 1, kTrueOrFalse, "the prediction holds logarithms of rates; false: rates"},
        {"full", kNumber, 0, kTrueOrFalse, "adds Stirling's formula for log t! where t > 1"},
        {"eps", kNumber, 1e-8, kAboveZero, "is added to rates before their logarithm"}},
       poisson_nll,
       "e^x - t x; with `log_input=false` x - t log(x + eps)",
       "elements",
       "As `torch.nn.functional.poisson_nll_loss`"},
      {"gaussian_nll",
       {{"mean", kPrediction, kOwn}, {"variance", kPrediction, kBroadcasts}, target},
       {{"full", kNumber, 0, kTrueOrFalse, "adds log(2π)/2"},
        {"eps", kNumber, 1e-6, kAboveZero, "the least variance that is computed with; its gradient goes on"}},
       gaussian_nll,
       "(log v + (x - t)²/v)/2, for the variance v, which broadcasts to the mean x; a negative one gives NaN",
       "elements",
       "As `torch.nn.functional.gaussian_nll_loss`, whose arguments have another order",
       0,
       kAnyRank,
       Prediction::kEstimate},
      {"dpo",
       {{"chosen", kPrediction, kOwn},
        {"rejected", kPrediction, kSame},
        {"reference_chosen", kTarget, kSame},
        {"reference_rejected", kTarget, kSame}},
       {{"beta", kNumber, 0.1, kAboveZero, "how closely the policy stays with the reference"},
        {"label_smoothing", kNumber, 0, kZeroToOne, "the probability that a preference is the wrong way round"},
        {"loss_type",
         kChoice,
         0,
         kAnyNumber,
         "`sigmoid`; `robust`: unbiased for preferences that are turned with the probability s, "
         "(-(1 - s) log σ(m) + s log σ(-m)) / (1 - 2 s); `hinge`: max(0, 1 - m); `ipo`: (m/beta - 1/(2 beta))²",
         {"sigmoid", "robust", "hinge", "ipo"}},
        {"reference_free", kNumber, 0, kTrueOrFalse, "m = beta (chosen - rejected); there is no reference"}},
       dpo,
       "-(1 - s) log σ(m) - s log σ(-m), where m = beta ((chosen - rejected) - (reference_chosen - "
       "reference_rejected)), "
       "all four log-probabilities of whole answers, and s the label smoothing",
       "pairs",
       "Rafailov et al., Direct Preference Optimization, 2023; variants as in `trl`'s `DPOTrainer`. Without "
       "predictions, `dpo(beta=0.1)`, it computes the log-probabilities of [pairs in the batch](#preferences) itself"},
  };
}

}  // namespace onnx_train
