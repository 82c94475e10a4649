// The nodes of statistics. All are doubles and sums over positions: classes and values are compared in the model's own
// type, and what is summed is cast first. A position whose prediction is not a number makes the sums not a number;
// positions with an ignored label add nothing.
#include <cmath>
#include <limits>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/loss/term_builder.h"
#include "onnx_passes/metrics/metric_table.h"

namespace onnx_train {
namespace {

Var real(Var x) { return cast(x, DType::kDouble); }
Var number(Builder& b, double value) { return b.scalar(DType::kDouble, value); }
Var whole(Builder& b, int64_t value) { return b.scalar(DType::kInt64, static_cast<double>(value)); }
Var flat(Var x) { return reshape(x, std::vector<int64_t>{-1}); }

// Scalars as a vector, rows as a matrix.
Var stacked(const std::vector<Var>& parts) {
  std::vector<Var> rows;
  for (const Var& part : parts) rows.push_back(unsqueeze(part, {0}));
  return concat(rows, 0);
}

// Σ of the weights that have each index, for indices below `size`, an int64[1].
Var summed_by_index(Var index, Var weights, Var size) {
  Builder& b = index.builder();
  return b.op("ScatterElements", {expand(number(b, 0), size), flat(index), flat(weights)},
              {{"axis", 0}, {"reduction", "add"}});
}

// The weight of each element of x: that of its sample, or 1.
Var weights_of(TermBuilder& t, Var x) {
  const Var ones = expand(number(t.b(), 1), shape(x));
  const Var samples = t.weight_of_samples(ones, t.x());
  return samples ? ones * samples : ones;
}

Var is_nan(Var x) { return logical_not(equal(x, x)); }

// ---- Class indices

// What each position counts, for metrics of class indices.
Var weights_of_positions(TermBuilder& t, const Labels& labels, Var damaged) {
  const Var nan = number(t.b(), std::numeric_limits<double>::quiet_NaN());
  return where(labels.ignored, number(t.b(), 0), where(damaged, nan, weights_of(t, labels.index)));
}

// Σ w where `right` holds, and Σ w.
Var sums_where(Var right, Var weight) {
  return stacked({sum_all(where(right, weight, number(weight.builder(), 0))), sum_all(weight)});
}

// The labels of a term over class indices, and what each counts.
struct ClassPositions {
  Var x, label, weight;
  int64_t axis;

  explicit ClassPositions(TermBuilder& t) : x(t.x()), axis(t.integer("axis")) {
    const Labels labels = t.labels(x);
    label = labels.index;
    const Var damaged =
        reduce_sum(cast(is_nan(x), DType::kFloat), std::vector<int64_t>{axis}, /*keepdims=*/false) > 0.0;
    weight = weights_of_positions(t, labels, damaged);
  }

  Var best() const { return x.builder().op("ArgMax", {x}, {{"axis", axis}, {"keepdims", 0}}); }
  Var classes() const { return dim(x, axis); }
  // 0, 1, ... along the axis of the classes.
  Var numbers() const {
    Builder& b = x.builder();
    return along(b.op("Range", {whole(b, 0), squeeze(classes(), {0}), whole(b, 1)}), axis, x.rank());
  }
};

// The scores of the labels, of one function that reads the prediction: a plan may compute them before there is a whole
// one (linear_cross_entropy).
struct LabelPositions {
  Var log_p, rank;
  Labels labels;

  explicit LabelPositions(TermBuilder& t) : labels(t.labels(t.x())) {
    const auto scores = call(t.b(), "LabelScores", 2, {t.x(), cast(labels.given, DType::kInt64)},
                             {{"axis", t.integer("axis")}, {"ignore_index", t.integer("ignore_index")}});
    log_p = scores[0], rank = scores[1];
  }
};

// ---- Yes or no in each element

struct YesNoPositions {
  Var x, yes, weight;
  int64_t axis;  // of the classes; -1 for one class

  explicit YesNoPositions(TermBuilder& t) : x(t.x()), axis(x.rank() < 2 ? -1 : t.integer("axis")) {
    const Var target = t.argument(1, x);
    yes = target > 0.5;  // NOLINT(readability-magic-numbers)
    const Var ignored = equal(target, t.b().scalar(target.dtype(), t.number("ignore_index")));
    const Var damaged = is_nan(x), nan = number(t.b(), std::numeric_limits<double>::quiet_NaN());
    weight = where(ignored, number(t.b(), 0), where(damaged, nan, weights_of(t, x)));
  }

  Var predicted(TermBuilder& t) const {
    const double threshold = t.number("threshold");
    return x > (t.flag("probabilities") ? threshold : std::log(threshold / (1 - threshold)));
  }
  // Σ w where `holds`, for each class.
  Var by_class(Var holds) const { return summed(where(holds, weight, number(x.builder(), 0))); }
  Var all_by_class() const { return summed(weight); }

 private:
  Var summed(Var weights) const {
    if (axis < 0) return reshape(sum_all(weights), std::vector<int64_t>{1});
    const std::vector<int64_t> others = axes_without(x, axis);
    return reduce_sum(weights, others, /*keepdims=*/false);
  }
};

Var yes_no_counts(TermBuilder& t) {
  const YesNoPositions p(t);
  const Var predicted = p.predicted(t);
  return stacked(
      {p.by_class(logical_and(predicted, p.yes)), p.by_class(predicted), p.by_class(p.yes), p.all_by_class()});
}

Var counts(TermBuilder& t) {
  if (t.floats(1)) return yes_no_counts(t);
  const ClassPositions p(t);
  const Var best = p.best(), size = p.classes();
  const Var hits = where(equal(best, p.label), p.weight, number(t.b(), 0));
  return stacked({summed_by_index(p.label, hits, size), summed_by_index(best, p.weight, size),
                  summed_by_index(p.label, p.weight, size), expand(sum_all(p.weight), size)});
}

Var confusion(TermBuilder& t) {
  if (t.floats(1)) return yes_no_counts(t);
  const ClassPositions p(t);
  const Var size = p.classes(), matrix = concat({size, size}, 0);
  const Var row = p.label * squeeze(size, {0}), index = row + p.best();
  return reshape(summed_by_index(index, p.weight, size * size), matrix);
}

Var hits(TermBuilder& t) {
  if (t.floats(1)) {
    const YesNoPositions p(t);
    const Var right = equal(p.predicted(t), p.yes);
    return stacked({sum_all(where(right, p.weight, number(t.b(), 0))), sum_all(p.weight)});
  }
  const ClassPositions p(t);
  return sums_where(equal(p.best(), p.label), p.weight);
}

// A label is among the first k where fewer than k classes have a higher score, or the same and a lower index.
Var top_hits(TermBuilder& t) {
  const LabelPositions p(t);
  const Var right = p.rank < t.number("k");
  return sums_where(right, weights_of_positions(t, p.labels, is_nan(p.rank)));
}

Var log_loss(TermBuilder& t) {
  const LabelPositions p(t);
  const Var weight = weights_of_positions(t, p.labels, is_nan(p.log_p)), nothing = number(t.b(), 0);
  const Var absent = equal(weight, nothing);
  return stacked({sum_all(where(absent, nothing, -real(p.log_p) * weight)), sum_all(weight)});
}

// ---- Scores

// The bin of a probability: of equal width in u = σ(logit(p) / 4) = p^¼ / (p^¼ + (1 - p)^¼), which is finer than p
// where networks are sure of themselves. u grows with p, so that order is kept.
Var bins_of(TermBuilder& t, Var u) {
  const double bins = t.number("bins");
  const Var known = where(is_nan(u), number(t.b(), 0), u);
  return cast(min(t.b().op("Floor", {known * bins}), number(t.b(), bins - 1)), DType::kInt64);
}
Var quarter_logit(Var p) {
  const Var yes = sqrt(sqrt(p)), no = sqrt(sqrt(1.0 - p));
  return yes / (yes + no);
}

Var by_score(TermBuilder& t, Var class_numbers, Var positive, Var u, Var weight, Var classes) {
  const int64_t bins = t.integer("bins");
  const Var no = class_numbers * 2.0, row = no + cast(positive, DType::kInt64);
  const Var first = row * static_cast<double>(bins), index = first + bins_of(t, u);
  const Var weights = expand(weight, shape(index));
  const Var sums = summed_by_index(index, weights, classes * static_cast<double>(2 * bins));
  return reshape(sums, concat({classes, t.b().ints({2, bins})}, 0));
}

Var scores(TermBuilder& t) {
  const bool given = t.flag("probabilities");
  if (t.floats(1)) {
    const YesNoPositions p(t);
    const Var u = given ? quarter_logit(real(p.x)) : sigmoid(real(p.x) * 0.25);  // NOLINT(readability-magic-numbers)
    const Var size = p.axis < 0 ? t.b().ints({1}) : dim(p.x, p.axis);
    const Var numbers = t.b().op("Range", {whole(t.b(), 0), squeeze(size, {0}), whole(t.b(), 1)});
    return by_score(t, p.axis < 0 ? numbers : along(numbers, p.axis, p.x.rank()), p.yes, u, p.weight, size);
  }
  const ClassPositions p(t);
  const Var probabilities = given ? real(p.x) : t.b().op("Softmax", {real(p.x)}, {{"axis", p.axis}});
  const Var numbers = p.numbers(), positive = equal(numbers, unsqueeze(p.label, {p.axis}));
  const Var u = quarter_logit(probabilities), weight = unsqueeze(p.weight, {p.axis});
  return by_score(t, numbers, positive, u, weight, p.classes());
}

// ---- Values

Var errors(TermBuilder& t) {
  const Var x = real(t.x()), target = real(t.argument(1, t.x())), w = weights_of(t, x), e = abs(x - target);
  const Var size = max(abs(target), number(t.b(), std::numeric_limits<double>::epsilon()));
  return stacked({sum_all(w), sum_all(w * e), sum_all(w * e * e), sum_all(w * e / size)});
}

// By column where x is [samples, D]; of all elements otherwise.
Var moments(TermBuilder& t) {
  const Var x = real(t.x()), target = real(t.argument(1, t.x())), w = weights_of(t, x), e = x - target;
  const auto sum = [&](Var values) {
    if (x.rank() != 2) return reshape(sum_all(values), std::vector<int64_t>{1});
    return reduce_sum(values, std::vector<int64_t>{0}, /*keepdims=*/false);
  };
  const Var counted = real(logical_not(equal(w, number(t.b(), 0))));
  return stacked({sum(counted), sum(w), sum(w * e * e), sum(w * x), sum(w * x * x), sum(w * target),
                  sum(w * target * target), sum(w * x * target)});
}

Var cosines(TermBuilder& t) {
  constexpr double kLeast = 1e-8;
  const Var x = real(t.x()), target = real(t.argument(1, t.x()));
  const std::vector<int64_t> last = {x.rank() - 1};
  const auto sum = [&](Var values) { return reduce_sum(values, last, /*keepdims=*/false); };
  const auto norm = [&](Var values) { return max(sqrt(sum(values * values)), number(t.b(), kLeast)); };
  const Var product = sum(x * target), of_x = norm(x), cosine = product / (of_x * norm(target));
  const Var w = weights_of(t, cosine);
  return stacked({sum_all(w * cosine), sum_all(w)});
}

}  // namespace

const Statistic kHits = {"hits", {2}, hits};
const Statistic kTopHits = {"top_hits", {2}, top_hits};
const Statistic kCounts = {"counts", {4, -1}, counts};
const Statistic kConfusion = {"confusion", {-1, -1}, confusion};
const Statistic kScores = {"scores", {-1, 2, -1}, scores};
const Statistic kLogLoss = {"log_loss", {2}, log_loss};
const Statistic kErrors = {"errors", {4}, errors};
const Statistic kMoments = {"moments", {8, -1}, moments};
const Statistic kCosines = {"cosines", {2}, cosines};

}  // namespace onnx_train
