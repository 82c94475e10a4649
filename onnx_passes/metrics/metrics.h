// Adds the statistics of metrics to the entry point "evaluate", which the loss pass has made. A pass on a model that
// one caller owns; throws Error for a metric that does not fit.
//
//   metric       [name =] row of metric_table.h [(prediction [, target] [, option=value ...])]
//
//   f1                                    of the loss's prediction and target
//   top5 = top_k(logits, labels, k=5)     named top5; without a name it is top_k
//
// What a metric leaves open is as in the first term of the loss that it fits: a metric of classes a loss over classes
// or of yes and no, a metric of values a loss that compares values. Where the prediction and the target are those of a
// term, so are the axis of the classes and the ignored labels. Sample weights of the loss are not taken over.
//
// Each statistic is one output of doubles with the role "statistic", for all metrics that are made of it; its `of` is
// the statistic's expression, statistic_of(). Metadata: onnx_train.metrics is a JSON list of the resolved metrics. The
// metric "accuracy" that the loss has anyway is not added again.
#pragma once

#include "onnx_passes/metrics/metric_table.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

inline constexpr const char* kMetrics = "onnx_train.metrics";

struct Metric {
  std::string name;
  LossTerm term;
  const MetricRow* row;
};

// Throws Error that names the column.
Metric parse_metric(const std::string& text);
// "top5=top_k(logits, labels, k=5)".
std::string to_string(const Metric& metric);
// Metrics with the same text have the same sums: "counts(logits, labels, axis=1)".
std::string statistic_of(const Metric& metric);
// The names of the rows.
std::vector<std::string> metric_names();

Pass metrics(const BuildOptions& options);

}  // namespace onnx_train
