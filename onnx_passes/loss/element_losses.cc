// Losses that compare a prediction x with a target t element by element.
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

LossResult of_elements(TermBuilder& t, Var losses, Var x) { return t.reduced(x, {losses, "elements", all_axes(x)}); }

// w ((1 - t) x + (1 + (p - 1) t) log(1 + e⁻ˣ))      p: pos_weight
LossResult bce_with_logits(TermBuilder& t) {
  const Var x = t.x(), target = t.argument(1, x), size = abs(x);
  Var loss = softplus(-x, size);
  if (const Var pos_weight = t.element_weight("pos_weight", x)) loss = loss * ((pos_weight - 1.0) * target + 1.0);
  loss = (1.0 - target) * x + loss;
  if (const Var weight = t.element_weight("weight", x)) loss = loss * weight;
  return of_elements(t, loss, x);
}

LossResult sigmoid_focal(TermBuilder& t) {
  const Var x = t.x(), target = t.argument(1, x);
  const double gamma = t.number("gamma"), alpha = t.number("alpha");
  const Var p = sigmoid(x), linear = (1.0 - target) * x, size = abs(x);
  Var loss = linear + softplus(-x, size);
  if (gamma != 0) {
    const Var sum = p + target;
    loss = loss * power_of_missing(sum - 2.0 * (p * target), gamma);
  }
  if (alpha >= 0) loss = loss * ((2 * alpha - 1) * target + (1 - alpha));
  return of_elements(t, loss, x);
}

LossResult mse(TermBuilder& t) {
  const Var x = t.x(), d = x - t.argument(1, x);
  return of_elements(t, d * d, x);
}

LossResult l1(TermBuilder& t) {
  const Var x = t.x();
  return of_elements(t, abs(x - t.argument(1, x)), x);
}

LossResult huber(TermBuilder& t) {
  const Var x = t.x(), d = x - t.argument(1, x), size = abs(d);
  const double delta = t.number("delta");
  const Var is_small = size < delta, half_square = d * d * 0.5;
  return of_elements(t, where(is_small, half_square, (size - delta / 2) * delta), x);
}

LossResult smooth_l1(TermBuilder& t) {
  const Var x = t.x(), d = x - t.argument(1, x), size = abs(d);
  const double beta = t.number("beta");
  if (beta == 0) return of_elements(t, size, x);
  const Var is_small = size < beta, square = d * d * (0.5 / beta);
  return of_elements(t, where(is_small, square, size - beta / 2), x);
}

LossResult hinge(TermBuilder& t) {
  const Var x = t.x(), over = above_zero(t.number("margin") - sign_of_target(t.argument(1, x)) * x);
  return of_elements(t, t.number("p") == 2 ? over * over : over, x);
}

LossResult hinge_embedding(TermBuilder& t) {
  const Var x = t.x(), target = t.argument(1, x), is_alike = target > 0.0;
  return of_elements(t, where(is_alike, x, above_zero(t.number("margin") - x)), x);
}

}  // namespace

std::vector<LossRow> element_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const LossArgument x = {"prediction", kPrediction, kOwn}, target = {"target", kTarget, kSame};
  const LossArgument logits = {"logits", kPrediction, kOwn};
  return {
      {"bce_with_logits",
       {logits, target},
       {{"weight", kElementWeight, 0, kAnyNumber, "a weight for each element; it broadcasts to the prediction"},
        {"pos_weight", kChannelWeight, 0, kAnyNumber,
         "a weight for the positive part, likewise, or a list along the last axis; a new input has the last axis"}},
       bce_with_logits,
       "-w (pos_weight t log σ(x) + (1 - t) log(1 - σ(x)))",
       "elements, whatever their weights",
       "As `torch.nn.functional.binary_cross_entropy_with_logits`",
       0,
       kAnyRank,
       Prediction::kYesNo},
      {"mse",
       {x, target},
       {},
       mse,
       "(x - t)²",
       "elements",
       "As `torch.nn.functional.mse_loss`",
       0,
       kAnyRank,
       Prediction::kEstimate},
      {"l1",
       {x, target},
       {},
       l1,
       "|x - t|",
       "elements",
       "As `torch.nn.functional.l1_loss`",
       0,
       kAnyRank,
       Prediction::kEstimate},
      {"huber",
       {x, target},
       {{"delta", kNumber, 1, kAboveZero, "where the square becomes a line"}},
       huber,
       "d²/2 where |d| < delta, else delta (|d| - delta/2), for d = x - t",
       "elements",
       "As `torch.nn.functional.huber_loss`",
       0,
       kAnyRank,
       Prediction::kEstimate},
      {"smooth_l1",
       {x, target},
       {{"beta", kNumber, 1, kFromZero, "where the square becomes a line; at 0 it is `l1`"}},
       smooth_l1,
       "d²/(2 beta) where |d| < beta, else |d| - beta/2, for d = x - t",
       "elements",
       "As `torch.nn.functional.smooth_l1_loss`",
       0,
       kAnyRank,
       Prediction::kEstimate},
      {"sigmoid_focal",
       {logits, target},
       {{"alpha", kNumber, 0.25, kMinusOneToOne,
         "the weight of the positive part, 1 - alpha that of the negative one; below 0: none"},
        {"gamma", kNumber, 2, kFromZero, "how much well-classified elements lose; at 0 there is only the weight"}},
       sigmoid_focal,
       "α (1 - q)^gamma (-log q), where q is σ(x) for t = 1 and 1 - σ(x) for t = 0, and α is alpha and 1 - alpha",
       "elements; RetinaNet's own code divides by the number of positive anchors: take `reduction=sum` for that",
       "As `torchvision.ops.sigmoid_focal_loss`",
       0,
       kAnyRank,
       Prediction::kYesNo},
      {"hinge",
       {{"scores", kPrediction, kOwn}, target},
       {{"margin", kNumber, 1, kAnyNumber, "by how much the score should be on the right side"},
        {"p", kNumber, 1, kOneOrTwo, "the exponent; 2 is the squared hinge"}},
       hinge,
       "max(0, margin - t x)^p, for targets of 1 and -1; 0 stands for -1",
       "elements",
       "As `keras.losses.Hinge` and `SquaredHinge`, that of support vector machines; over several classes take "
       "`multi_margin`"},
      {"hinge_embedding",
       {{"distances", kPrediction, kOwn}, target},
       {{"margin", kNumber, 1, kAnyNumber, "up to which distance what is unlike is pushed away"}},
       hinge_embedding,
       "x where t > 0, else max(0, margin - x), for distances x and targets of 1 (alike) and -1 or 0",
       "elements",
       "As `torch.nn.functional.hinge_embedding_loss`"},
  };
}

}  // namespace onnx_train
