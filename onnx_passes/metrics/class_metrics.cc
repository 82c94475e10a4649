// Metrics of classes: their rows, and the numbers that are made of counts and of the histograms of scores.
#include <cmath>
#include <functional>
#include <limits>

#include "onnx_passes/metrics/metric_table.h"

namespace onnx_train {
namespace {

using enum OptionKind;

constexpr NumberRange kBins{[](double x) { return x == std::floor(x) && x >= 2 && x <= 1 << 20; },
                            "a whole number from 2 to 1048576"};
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// a / b; 0 where b is 0, as scikit-learn's zero_division=0.
double ratio(double a, double b) { return b == 0 ? 0 : a / b; }
double mean(double sum, double count) { return count == 0 ? kUndefined : sum / count; }

double sum_of(const Tensor& t) {
  double sum = 0;
  for (int64_t i = 0; i < t.size(); ++i) sum += t.at(i);
  return sum;
}

// Averages the values of the classes as the option `average` says. Classes that are not a number are left out, unless
// `damaged`: then a prediction was not a number, and so is the mean. `micro` is the value over all classes at once.
MetricValue averaged(const LossTerm& term, Tensor values, const std::function<double(int64_t)>& support, double micro,
                     bool damaged) {
  const std::string average = choice_of(term, "average");
  double sum = 0, count = 0;
  const int64_t classes = values.size();
  for (int64_t c = 0; c < classes; ++c) {
    const double weight = average == "weighted" ? support(c) : 1;
    if (std::isnan(values.at(c)) || weight == 0) continue;
    sum += weight * values.at(c);
    count += weight;
  }
  double value = mean(sum, count);
  if (average == "micro") value = micro;
  if (average == "binary") value = classes > 2 || classes == 0 ? kUndefined : values.at(classes - 1);
  return {damaged ? kUndefined : value, std::move(values)};
}

// ---- Of counts

struct Counts {
  double hits, predicted, labels, all;
};
Counts counts_of(const Tensor& sums, int64_t c) {
  const int64_t classes = sums.shape()[1];
  return {sums.at(c), sums.at(classes + c), sums.at(2 * classes + c), sums.at(3 * classes + c)};
}

// A class that neither labels nor predictions have is not a number, and no part of means.
template <double (*f)(const Counts&)>
MetricValue of_counts(const Tensor& sums, const LossTerm& term) {
  const int64_t classes = sums.shape()[1];
  Tensor values(DType::kDouble, {classes});
  Counts all{};
  for (int64_t c = 0; c < classes; ++c) {
    const Counts n = counts_of(sums, c);
    values.set(c, n.predicted == 0 && n.labels == 0 ? kUndefined : f(n));
    all = {all.hits + n.hits, all.predicted + n.predicted, all.labels + n.labels, all.all + n.all};
  }
  return averaged(
      term, values, [&](int64_t c) { return counts_of(sums, c).labels; },
      all.predicted == 0 && all.labels == 0 ? kUndefined : f(all), std::isnan(sum_of(sums)));
}

double precision(const Counts& n) { return ratio(n.hits, n.predicted); }
double recall(const Counts& n) { return ratio(n.hits, n.labels); }
double f1(const Counts& n) { return ratio(2 * n.hits, n.predicted + n.labels); }
double iou(const Counts& n) { return ratio(n.hits, n.predicted + n.labels - n.hits); }

MetricValue fraction(const Tensor& sums, const LossTerm&) { return {mean(sums.at(0), sums.at(1))}; }
MetricValue perplexity(const Tensor& sums, const LossTerm&) { return {std::exp(mean(sums.at(0), sums.at(1)))}; }

// Of classes that are yes or no by themselves a matrix for each, [C,2,2].
MetricValue confusion_matrix(const Tensor& sums, const LossTerm& term) {
  if (flag_of(term, "multilabel")) {
    const int64_t classes = sums.shape()[1];
    Tensor matrices(DType::kDouble, classes == 1 ? Shape{2, 2} : Shape{classes, 2, 2});
    for (int64_t c = 0; c < classes; ++c) {
      const Counts n = counts_of(sums, c);
      const double cells[] = {n.all - n.predicted - n.labels + n.hits, n.predicted - n.hits, n.labels - n.hits, n.hits};
      for (int64_t i = 0; i < 4; ++i) matrices.set(4 * c + i, cells[i]);
    }
    return {kUndefined, matrices};
  }
  return {kUndefined, sums.clone()};
}

MetricValue support(const Tensor& sums, const LossTerm&) {
  const int64_t classes = sums.shape()[1];
  Tensor labels(DType::kDouble, {classes});
  for (int64_t c = 0; c < classes; ++c) labels.set(c, counts_of(sums, c).labels);
  return {kUndefined, labels};
}

// ---- Of scores

// The counts of a class by bin, from the highest score down.
struct ScoreHistogram {
  std::vector<double> negatives, positives;
  double all_negatives = 0, all_positives = 0;

  explicit ScoreHistogram(size_t bins) : negatives(bins), positives(bins) {}
  void add(const Tensor& sums, int64_t c) {
    const auto bins = static_cast<int64_t>(negatives.size());
    for (int64_t i = 0; i < bins; ++i) {
      const double no = sums.at(2 * c * bins + bins - 1 - i), yes = sums.at((2 * c + 1) * bins + bins - 1 - i);
      negatives[static_cast<size_t>(i)] += no;
      positives[static_cast<size_t>(i)] += yes;
      all_negatives += no;
      all_positives += yes;
    }
  }
};

// The probability that a positive scores higher than a negative; within a bin one half.
double area(const ScoreHistogram& h) {
  double higher = 0, sum = 0;
  for (size_t i = 0; i < h.positives.size(); ++i) {
    sum += h.negatives[i] * (higher + h.positives[i] / 2);
    higher += h.positives[i];
  }
  return mean(sum, h.all_negatives * h.all_positives);
}

// Σ (recall - previous recall) precision, from the highest score down.
double average_precision(const ScoreHistogram& h) {
  double hits = 0, predicted = 0, sum = 0;
  for (size_t i = 0; i < h.positives.size(); ++i) {
    hits += h.positives[i];
    predicted += h.positives[i] + h.negatives[i];
    sum += h.positives[i] * ratio(hits, predicted);
  }
  return mean(sum, h.all_positives);
}

template <double (*f)(const ScoreHistogram&)>
MetricValue of_scores(const Tensor& sums, const LossTerm& term) {
  const int64_t classes = sums.shape()[0];
  const auto bins = static_cast<size_t>(sums.shape()[2]);
  Tensor values(DType::kDouble, {classes});
  std::vector<double> labels;
  ScoreHistogram all(bins);
  for (int64_t c = 0; c < classes; ++c) {
    ScoreHistogram own(bins);
    own.add(sums, c);
    all.add(sums, c);
    values.set(c, f(own));
    labels.push_back(own.all_positives);
  }
  return averaged(
      term, values, [&](int64_t c) { return labels[static_cast<size_t>(c)]; }, f(all), std::isnan(sum_of(sums)));
}

}  // namespace

std::vector<MetricRow> class_metrics() {
  using enum ArgumentKind;
  using enum ArgumentShape;
  const LossArgument x = {"logits", kPrediction, kOwn}, labels = {"labels", kIndices, kClasses};
  const LossArgument either = {"labels", kIndices, kClasses, "multilabel", true};
  const LossOption axis = {"axis", kNumber, 1, kWholeNumber,
                           "the axis of the classes: 2 for predictions of rank 3, else 1"};
  const LossOption ignored = {"ignore_index", kNumber, -100, kWholeNumber, "labels that do not count"};
  const LossOption multilabel = {"multilabel", kNumber, 0, kTrueOrFalse,
                                 "each class is a yes or a no of its own, and the target holds floats of the "
                                 "prediction's shape; so where the loss's target does"};
  const LossOption probabilities = {"probabilities", kNumber, 0, kTrueOrFalse,
                                    "the predictions are probabilities; so where a Softmax or a Sigmoid gives them"};
  const LossOption threshold = {"threshold", kNumber, 0.5, kInsideZeroToOne,
                                "with `multilabel`, the probability above which a class is predicted"};
  const LossOption average = {
      "average",
      kChoice,
      0,
      kAnyNumber,
      "the mean of the classes, macro; over all classes at once, micro; a mean by the number of "
      "labels, weighted; the last one of at most two classes, binary",
      {"macro", "micro", "weighted", "binary"}};
  const LossOption k = {"k", kNumber, 5, kFromOne, "how many classes"};
  const LossOption bins = {"bins", kNumber, 4096, kBins, "of the histogram of each class"};
  const std::vector<LossOption> of_classes = {average, axis, ignored, multilabel, threshold, probabilities};
  const std::vector<LossOption> plain = {axis, ignored, multilabel, threshold, probabilities};
  const std::vector<LossOption> of_scores_options = {average, axis, ignored, multilabel, probabilities, bins};
  const char* const positions = "labels that are not ignored; with `multilabel` over all elements";
  const char* const classes = "classes that labels or predictions have";
  return {
      {{"accuracy",
        {x, either},
        plain,
        nullptr,
        "The fraction of labels that have the largest prediction.",
        positions,
        "As `sklearn.metrics.accuracy_score`; with `multilabel` as torchmetrics' "
        "`MultilabelAccuracy(average=\"micro\")`"},
       &kHits,
       fraction,
       Better::kMore,
       true},
      {{"top_k",
        {x, labels},
        {k, axis, ignored},
        nullptr,
        "The fraction of labels that are among the k largest predictions; of equal ones the first comes first.",
        "labels that are not ignored",
        "As `sklearn.metrics.top_k_accuracy_score`"},
       &kTopHits,
       fraction,
       Better::kMore,
       true},
      {{"precision",
        {x, either},
        of_classes,
        nullptr,
        "tp / (tp + fp) of each class; 0 where nothing is predicted.",
        classes,
        "As `sklearn.metrics.precision_score`"},
       &kCounts,
       of_counts<precision>},
      {{"recall",
        {x, either},
        of_classes,
        nullptr,
        "tp / (tp + fn) of each class; 0 where no label has it.",
        classes,
        "As `sklearn.metrics.recall_score`"},
       &kCounts,
       of_counts<recall>},
      {{"f1",
        {x, either},
        of_classes,
        nullptr,
        "2 tp / (2 tp + fp + fn) of each class.",
        classes,
        "As `sklearn.metrics.f1_score`"},
       &kCounts,
       of_counts<f1>},
      {{"iou",
        {x, either},
        of_classes,
        nullptr,
        "tp / (tp + fp + fn) of each class, over all positions of the data.",
        classes,
        "As `sklearn.metrics.jaccard_score`"},
       &kCounts,
       of_counts<iou>},
      {{"dice",
        {x, either},
        of_classes,
        nullptr,
        "2 tp / (2 tp + fp + fn) of each class, over all positions of the data, not image by image: the same as `f1`.",
        classes,
        "As torchmetrics' `segmentation.DiceScore` with `aggregation_level=\"global\"`"},
       &kCounts,
       of_counts<f1>},
      {{"support",
        {x, either},
        plain,
        nullptr,
        "The number of labels of each class, or the sum of their weights.",
        positions,
        "As the support of `sklearn.metrics.precision_recall_fscore_support`"},
       &kCounts,
       support,
       Better::kNone},
      {{"confusion_matrix",
        {x, either},
        plain,
        nullptr,
        "The number of labels by class (rows) and by predicted class (columns); with `multilabel` [[tn, fp], [fn, tp]] "
        "of "
        "each class.",
        positions,
        "As `sklearn.metrics.confusion_matrix`, with `multilabel` as `multilabel_confusion_matrix`"},
       &kConfusion,
       confusion_matrix,
       Better::kNone},
      {{"auc",
        {x, either},
        of_scores_options,
        nullptr,
        "The area under the ROC curve of each class against the rest: the probability that a sample of the class gets "
        "a "
        "higher probability than another one. Probabilities are counted in `bins`, of equal width in σ(logit(p)/4); "
        "within a bin they are ties, and count one half.",
        "classes that some labels have and some have not",
        "As `sklearn.metrics.roc_auc_score(multi_class=\"ovr\")`, exact but for the order within bins"},
       &kScores,
       of_scores<area>},
      {{"average_precision",
        {x, either},
        of_scores_options,
        nullptr,
        "Σ (recall - previous recall) precision, over the bins of `auc` from the highest one down.",
        "classes that some labels have",
        "As `sklearn.metrics.average_precision_score`, exact but for the order within bins"},
       &kScores,
       of_scores<average_precision>},
      {{"perplexity",
        {x, labels},
        {axis, ignored},
        nullptr,
        "exp of the mean of -log softmax(x)[y].",
        "labels that are not ignored",
        "As torchmetrics' `Perplexity`"},
       &kLogLoss,
       perplexity,
       Better::kLess},
  };
}

}  // namespace onnx_train
