// Losses over class indices. Notation: x the logits of a position, y its label, w the weights of the classes,
// p = softmax(x).
#include <algorithm>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

// ---- Cross entropy

// -Σ_c w[c] t[c] log p[c] with t ← t (1 - s) + s / C, averaged over the positions.
LossResult probability_cross_entropy(TermBuilder& t, Var logits, Var target) {
  const int64_t axis = t.integer("axis");
  const double smoothing = t.number("label_smoothing");
  if (smoothing > 0) {
    const Var kept = target * (1 - smoothing), classes = cast_like(squeeze(dim(logits, axis), {0}), logits);
    target = kept + smoothing / classes;
  }
  Var log_p = log_softmax(logits, axis);
  if (const Var weight = t.class_weight(logits)) log_p = log_p * along(weight, axis, logits.rank());
  const Var losses = -reduce_sum(target * log_p, std::vector<int64_t>{axis}, /*keepdims=*/false);
  return t.reduced(logits, {losses, "positions", axes_without(logits, axis)});
}

// The loss of each label, for sample weights: -(1 - s) w[y] log p[y] - s / C Σ_c w[c] log p[c]
LossResult cross_entropy_of_samples(TermBuilder& t, Var logits) {
  const int64_t axis = t.integer("axis");
  const double smoothing = t.number("label_smoothing");
  const Labels labels = t.labels(logits);
  const Var weight = t.class_weight(logits);
  const Var log_p = log_softmax(logits, axis);
  const Var counts = weight ? gather(weight, labels.index, 0) : Var();
  Var losses = -picked(log_p, labels.index, axis);
  if (weight) losses = losses * counts;
  if (smoothing > 0) {
    const Var weighted = weight ? log_p * along(weight, axis, logits.rank()) : log_p;
    const Var classes = cast_like(squeeze(dim(logits, axis), {0}), logits);
    const Var spread = reduce_sum(weighted, std::vector<int64_t>{axis}, /*keepdims=*/false);
    const Var kept = losses * (1 - smoothing);
    losses = kept - spread * (smoothing / classes);
  }
  return t.of_labels(logits, labels, losses, counts);
}

LossResult cross_entropy(TermBuilder& t) {
  const Var logits = t.x();
  if (t.floats(1)) return probability_cross_entropy(t, logits, t.argument(1, logits));
  if (t.has_sample_weight()) return cross_entropy_of_samples(t, logits);
  const Var labels = t.argument(1, logits);
  const Var weight = t.class_weight(logits);
  const bool indices = labels.dtype() == DType::kInt64 || labels.dtype() == DType::kInt32;
  const auto made =
      call(t.b(), "SoftmaxCrossEntropy", 2, {logits, indices ? labels : cast(labels, DType::kInt64), weight},
           {{"axis", t.integer("axis")},
            {"ignore_index", t.integer("ignore_index")},
            {"label_smoothing", Tensor::scalar(t.number("label_smoothing"))},
            {"reduction", t.is_sum() ? "sum" : "mean"}});
  Graph& graph = t.b().graph();
  graph.rename(made[1].value(), graph.unique_name(made[0].value()->name() + "/log_sum_exp"));
  return t.of_labels(LossResult{.loss = made[0]}, logits, labels, weight);
}

LossResult nll(TermBuilder& t) {
  constexpr double kLeast = 1e-30;  // whose logarithm has a finite slope in float32
  const Var x = t.x();
  const Var log_p = t.flag("log") ? t.b().op("Log", {t.b().op("Max", {x, t.b().scalar(x.dtype(), kLeast)})}) : x;
  const Labels labels = t.labels(log_p);
  const Var weight = t.class_weight(log_p);
  const Var counts = weight ? gather(weight, labels.index, 0) : Var();
  const Var losses = -picked(log_p, labels.index, t.integer("axis"));
  return t.of_labels(log_p, labels, weight ? losses * counts : losses, counts);
}

// ---- Others

LossResult focal(TermBuilder& t) {
  const Var logits = t.x();
  const int64_t axis = t.integer("axis");
  const double gamma = t.number("gamma");
  const Labels labels = t.labels(logits);
  const Var weight = t.class_weight(logits);
  // A class that is masked by -inf may be that of an ignored position: its slope would be 0 · ∞.
  const Var log_p =
      where(labels.ignored, t.b().scalar(logits.dtype(), 0), picked(log_softmax(logits, axis), labels.index, axis));
  Var losses = -log_p;
  if (gamma != 0) losses = losses * power_of_missing(1.0 - exp(log_p), gamma);
  const Var counts = weight ? gather(weight, labels.index, 0) : Var();
  return t.of_labels(logits, labels, weight ? losses * counts : losses, counts);
}

// The class y itself contributes max(0, margin)^p, whose derivative is 0, and which is subtracted.
LossResult multi_margin(TermBuilder& t) {
  const Var x = t.x();
  const int64_t axis = t.integer("axis");
  const double margin = t.number("margin"), p = t.number("p");
  const Labels labels = t.labels(x);
  const Var weight = t.class_weight(x);
  const Var own = unsqueeze(picked(x, labels.index, axis), {axis});
  const Var over = above_zero(x - own + margin);
  const Var sum = reduce_sum(p == 2 ? over * over : over, std::vector<int64_t>{axis}, /*keepdims=*/false);
  const Var classes = cast_like(squeeze(dim(x, axis), {0}), x);
  Var losses = (sum - std::pow(std::max(margin, 0.0), p)) / classes;
  if (weight) losses = losses * gather(weight, labels.index, 0);
  return t.of_labels(x, labels, losses, {});
}

// 1 - (2 Σ p t + s) / (Σ p + Σ t + s), sums over the positions of a sample and a class, mean over the classes.
Var soft_dice(TermBuilder& t, Var p, Var target, int64_t axis) {
  std::vector<int64_t> inner = axes_without(p, axis);
  std::erase(inner, 0);
  const double smooth = t.number("smooth");
  const auto sum = [&](Var x) { return reduce_sum(x, inner, /*keepdims=*/false); };
  const Var shared = sum(p * target) * 2.0 + smooth, of_p = sum(p), all = of_p + sum(target) + smooth;
  return reduce_mean(1.0 - shared / all, {1}, /*keepdims=*/false);
}

LossResult dice(TermBuilder& t) {
  const Var x = t.x();
  const int64_t axis = t.integer("axis");
  if (axis == 0) fail("[Loss] dice: axis 0 holds the samples; name another one as the axis of the classes");
  if (t.flag("sigmoid")) {
    const Var p = sigmoid(x);
    return t.reduced(x, {soft_dice(t, p, t.argument(1, x), axis), "samples", {0}});
  }
  const Labels labels = t.labels(x);
  const Var column = unsqueeze(labels.index, {axis}), ignored = unsqueeze(labels.ignored, {axis});
  const Var counted = where(ignored, t.b().scalar(x.dtype(), 0), t.b().scalar(x.dtype(), 1));
  const Var one_hot = t.b().op("ScatterElements", {zeros_like(x), column, counted}, {{"axis", axis}});
  const Var p = where(ignored, t.b().scalar(x.dtype(), 0), t.b().op("Softmax", {x}, {{"axis", axis}}));
  const Var losses = soft_dice(t, p, one_hot, axis);
  const Var of_sample = reduce_sum(counted, axes_without(x, 0), /*keepdims=*/false);  // labels that count
  const Var nothing = equal(of_sample, t.b().scalar(x.dtype(), 0));
  const LossResult result = t.reduced(x, {losses, "samples with labels", {0}, nothing, {}, t.labels_key(labels.given)});
  return t.of_labels(result, x, labels.given, {});
}

const LossOption kAxis = {"axis", kNumber, 1, kWholeNumber,
                          "the axis of the classes: 2 for predictions of rank 3, else 1"};
const LossOption kIgnoreIndex = {"ignore_index", kNumber, -100, kWholeNumber,
                                 "labels that do not count, such as those of padding or of a mask's border"};
const LossOption kWeight = {"weight", kClassWeight, 0, kAnyNumber,
                            "a weight for each class: a list, or the name of a vector"};

}  // namespace

std::vector<LossRow> class_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const LossArgument x = {"logits", kPrediction, kOwn}, labels = {"labels", kIndices, kClasses};
  return {
      {"cross_entropy",
       {x, {"labels", kIndices, kClasses, "probabilities", true}},
       {kAxis,
        kIgnoreIndex,
        {"label_smoothing", kNumber, 0, kZeroToOne, "how much of a label is spread over all classes"},
        kWeight,
        {"probabilities", kNumber, 0, kTrueOrFalse,
         "the target holds a probability for each class, of the prediction's shape; mean over positions"}},
       cross_entropy,
       "-w[y] log p[y], where p = softmax(logits). With label smoothing s and C classes: (1 - s) times that, and "
       "-s/C Σ_c w[c] log p[c].",
       "labels that are not ignored; with `weight`, over the sum of their weights",
       "As `torch.nn.functional.cross_entropy`"},
      {"nll",
       {{"log_probabilities", kPrediction, kOwn}, labels},
       {kAxis,
        kIgnoreIndex,
        kWeight,
        {"log", kNumber, 0, kTrueOrFalse,
         "the prediction holds probabilities: x are their logarithms, from log 1e-30"}},
       nll,
       "-w[y] x[y], where x are log-probabilities.",
       "labels that are not ignored; with `weight`, over the sum of their weights",
       "As `torch.nn.functional.nll_loss`"},
      {"focal",
       {x, labels},
       {{"gamma", kNumber, 2, kFromZero, "how much well-classified labels lose; at 0 it is `cross_entropy`"},
        kWeight,
        kAxis,
        kIgnoreIndex},
       focal,
       "-w[y] (1 - p[y])^gamma log p[y], where p = softmax(logits).",
       "labels that are not ignored; with `weight`, over the sum of their weights",
       "Lin et al., Focal Loss for Dense Object Detection, over several classes; `sigmoid_focal` is the loss of "
       "RetinaNet"},
      {"multi_margin",
       {{"scores", kPrediction, kOwn}, labels},
       {{"margin", kNumber, 1, kAnyNumber, "by how much the right class should be above the others"},
        {"p", kNumber, 1, kOneOrTwo, "the exponent"},
        kWeight,
        kAxis,
        kIgnoreIndex},
       multi_margin,
       "w[y]/C Σ_{c≠y} max(0, margin - x[y] + x[c])^p, for C classes.",
       "labels that are not ignored, whatever their weights",
       "As `torch.nn.functional.multi_margin_loss`"},
      {"dice",
       {x, {"labels", kIndices, kClasses, "sigmoid"}},
       {{"smooth", kNumber, 1e-5, kAboveZero, "keeps the loss of a class without positions finite"},
        {"sigmoid", kNumber, 0, kTrueOrFalse,
         "each class is a mask of its own: p = sigmoid(logits), and the target holds floats of the prediction's shape"},
        kAxis,
        kIgnoreIndex},
       dice,
       "1 - (2 Σ p t + smooth) / (Σ p + Σ t + smooth) of each sample and class, averaged over the classes; the sums "
       "are "
       "over the positions of a sample, p = softmax(logits), and t is 1 where the label is that class, else 0.",
       "samples that have a label which is not ignored",
       "As MONAI's `DiceLoss`",
       3},
  };
}

}  // namespace onnx_train
