// Losses of distances and rankings, of vectors along the last axis.
#include "onnx_passes/loss/term_builder.h"

namespace onnx_train {
namespace {

using enum OptionKind;

Var sum_of_last(Var x) { return reduce_sum(x, {x.rank() - 1}, /*keepdims=*/false); }

// ‖a - b + eps‖_p
Var distance_of(Var a, Var b, double p, double eps) {
  const Var d = a - b + eps;
  if (p == 2) return sqrt(sum_of_last(d * d));
  return p == 1 ? sum_of_last(abs(d)) : pow(sum_of_last(pow(abs(d), p)), 1 / p);
}

std::vector<int64_t> vectors_of(Var x) { return axes_without(x, x.rank() - 1); }

LossResult triplet_margin(TermBuilder& t) {
  const Var a = t.x(), positive = t.argument(1, a), negative = t.argument(2, a);
  const double p = t.number("p"), eps = t.number("eps");
  Var far = distance_of(a, negative, p, eps);
  if (t.flag("swap")) far = min(far, distance_of(positive, negative, p, eps));
  const Var losses = above_zero(distance_of(a, positive, p, eps) - far + t.number("margin"));
  return t.reduced(a, {losses, "triplets", vectors_of(a)});
}

LossResult cosine_embedding(TermBuilder& t) {
  constexpr double kEps = 1e-12;
  const Var a = t.x(), b = t.argument(1, a), target = t.argument(2, a);
  const Var product = sum_of_last(a * b), of_a = sum_of_last(a * a) + kEps, of_b = sum_of_last(b * b) + kEps;
  const Var cosine = product / sqrt(of_a * of_b), is_alike = target > 0.0, distance = 1.0 - cosine;
  const Var losses = where(is_alike, distance, above_zero(cosine - t.number("margin")));
  return t.reduced(a, {losses, "pairs", vectors_of(a)});
}

LossResult cosine(TermBuilder& t) {
  constexpr double kEps = 1e-8;
  const Var x = t.x(), target = t.argument(1, x), direction = normalized(x, kEps);
  const Var losses = 1.0 - sum_of_last(direction * normalized(target, kEps));
  return t.reduced(x, {losses, "vectors", vectors_of(x)});
}

LossResult margin_ranking(TermBuilder& t) {
  const Var x = t.x(), other = t.argument(1, x), order = sign_of_target(t.argument(2, x));
  const Var losses = above_zero(t.number("margin") - order * (x - other));
  return t.reduced(x, {losses, "elements", all_axes(x)});
}

}  // namespace

std::vector<LossRow> margin_losses() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  return {
      {"triplet_margin",
       {{"anchor", kPrediction, kOwn}, {"positive", kPrediction, kSame}, {"negative", kPrediction, kSame}},
       {{"margin", kNumber, 1, kAnyNumber, "by how much the negative should be farther away"},
        {"p", kNumber, 2, kFromOne, "the norm"},
        {"eps", kNumber, 1e-6, kAboveZero, "is added to differences"},
        {"swap", kNumber, 0, kTrueOrFalse, "d(anchor, negative) is d(positive, negative) where that is smaller"}},
       triplet_margin,
       "max(0, d(anchor, positive) - d(anchor, negative) + margin), where d(a, b) = ‖a - b + eps‖ over the last axis",
       "triplets",
       "As `torch.nn.functional.triplet_margin_loss`",
       1},
      {"cosine_embedding",
       {{"a", kPrediction, kOwn}, {"b", kPrediction, kSame}, {"target", kTarget, kRows}},
       {{"margin", kNumber, 0, kMinusOneToOne, "down to which cosine what is unlike is pushed apart"}},
       cosine_embedding,
       "1 - cos(a, b) where t > 0, else max(0, cos(a, b) - margin), for targets of 1 (alike) and -1 or 0; the cosine "
       "is "
       "over the last axis",
       "pairs",
       "As `torch.nn.functional.cosine_embedding_loss`",
       1},
      {"cosine",
       {{"prediction", kPrediction, kOwn}, {"target", kTarget, kSame}},
       {},
       cosine,
       "1 - cos(x, t), over the last axis",
       "vectors",
       "The cosine is that of `torch.nn.functional.cosine_similarity`",
       1,
       kAnyRank,
       Prediction::kEstimate},
      {"margin_ranking",
       {{"first", kPrediction, kOwn}, {"second", kPrediction, kSame}, {"target", kTarget, kSame}},
       {{"margin", kNumber, 0, kAnyNumber, "by how much the higher one should be higher"}},
       margin_ranking,
       "max(0, margin - t (first - second)), for targets of 1 (the first is higher) and -1 or 0",
       "elements",
       "As `torch.nn.functional.margin_ranking_loss`"},
  };
}

}  // namespace onnx_train
