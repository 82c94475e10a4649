// Metrics of predicted numbers and vectors: their rows, and the numbers that are made of the sums.
#include <cmath>
#include <limits>

#include "onnx_passes/metrics/metric_table.h"

namespace onnx_train {
namespace {

constexpr double kNotDefined = std::numeric_limits<double>::quiet_NaN();

double quotient(double sum, double count) { return count == 0 ? kNotDefined : sum / count; }

// Of kErrors, row `i` over the weights.
template <int64_t i>
MetricValue mean_error(const Tensor& sums, const LossTerm&) {
  return {quotient(sums.at(i), sums.at(0))};
}
MetricValue rmse(const Tensor& sums, const LossTerm&) { return {std::sqrt(quotient(sums.at(2), sums.at(0)))}; }
MetricValue mean_cosine(const Tensor& sums, const LossTerm&) { return {quotient(sums.at(0), sums.at(1))}; }

struct Moments {
  double n, w, ee, x, xx, t, tt, xt;
  // Σ w (a - mean)(b - mean), of sums. What rounding may have left of 0 is 0.
  double spread(double ab, double a, double b) const {
    constexpr double kRounding = 1e-14;
    const double value = ab - a * b / w;
    return std::abs(value) <= kRounding * std::abs(ab) ? 0 : value;
  }
};

// The mean over the columns; one that is not a number makes the mean such.
template <double (*f)(const Moments&)>
MetricValue of_moments(const Tensor& sums, const LossTerm&) {
  const int64_t columns = sums.shape()[1];
  double sum = 0;
  for (int64_t c = 0; c < columns; ++c) {
    const auto row = [&](int64_t i) { return sums.at(i * columns + c); };
    sum += f({row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)});
  }
  return {quotient(sum, static_cast<double>(columns))};
}

double r2(const Moments& m) {
  if (m.n < 2) return kNotDefined;
  const double total = m.spread(m.tt, m.t, m.t);
  if (total == 0) return m.ee == 0 ? 1 : std::isnan(m.ee) ? m.ee : 0;
  return 1 - m.ee / total;
}

double pearson(const Moments& m) {
  const double variances = m.spread(m.xx, m.x, m.x) * m.spread(m.tt, m.t, m.t);
  return variances == 0 ? kNotDefined : m.spread(m.xt, m.x, m.t) / std::sqrt(variances);
}

}  // namespace

std::vector<MetricRow> value_metrics() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const std::vector<LossArgument> pair = {{"prediction", kPrediction, kOwn}, {"target", kTarget, kSame}};
  const char* const columns =
      "samples, for each column of predictions [samples, columns], and then over the columns; other predictions are "
      "one "
      "column";
  return {
      {{"mae", pair, {}, nullptr, "The mean of |x - t|.", "elements", "As `sklearn.metrics.mean_absolute_error`"},
       &kErrors,
       mean_error<1>,
       Better::kLess},
      {{"mse", pair, {}, nullptr, "The mean of (x - t)².", "elements", "As `sklearn.metrics.mean_squared_error`"},
       &kErrors,
       mean_error<2>,
       Better::kLess},
      {{"rmse",
        pair,
        {},
        nullptr,
        "The square root of `mse`.",
        "elements",
        "As torchmetrics' `MeanSquaredError(squared=False)`"},
       &kErrors,
       rmse,
       Better::kLess},
      {{"mape",
        pair,
        {},
        nullptr,
        "The mean of |x - t|/|t|, a fraction. Where t is 0, it is huge.",
        "elements",
        "As `sklearn.metrics.mean_absolute_percentage_error`"},
       &kErrors,
       mean_error<3>,
       Better::kLess},
      {{"r2",
        pair,
        {},
        nullptr,
        "1 - Σ (x - t)² / Σ (t - mean)². A target that is constant gives 1 if all is right, else 0; fewer than two "
        "samples are not a number. Spreads that are below 10⁻⁷ of the mean are lost in rounding.",
        columns,
        "As `sklearn.metrics.r2_score`"},
       &kMoments,
       of_moments<r2>},
      {{"pearson",
        pair,
        {},
        nullptr,
        "The correlation of x and t, from -1 to 1; not a number where one of them is constant.",
        columns,
        "As torchmetrics' `PearsonCorrCoef`"},
       &kMoments,
       of_moments<pearson>},
      {{"cosine",
        pair,
        {},
        nullptr,
        "The mean of cos(x, t) over the last axis.",
        "vectors",
        "As torchmetrics' `CosineSimilarity(reduction=\"mean\")`",
        1},
       &kCosines,
       mean_cosine},
  };
}

}  // namespace onnx_train
