// The metrics that --metric may name, one row each. A metric is computed in two parts: a statistic, which the entry
// point "evaluate" computes of a batch and which is summed over all batches, and the number that is made of the sums.
// So an evaluation does not depend on the sizes of batches. The grammar (metrics.h), the nodes, the finishing
// functions, the direction of --best and the reference in docs/metrics.md follow from the rows. Tables that never
// change, and functions of plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/loss/loss_table.h"

namespace onnx_train {

class Var;

// What is summed over batches: a tensor of doubles, so that counts are exact up to 2⁵³.
struct Statistic {
  const char* name;            // of the output, if it is free
  std::vector<int64_t> shape;  // -1: any size
  Var (*build)(TermBuilder&);  // statistics.cc
};

// What a metric says of the sums.
struct MetricValue {
  double value;       // not a number where it is not defined, such as a mean over nothing
  Tensor table = {};  // doubles: the value of each class [C], or a confusion matrix [C,C]; else empty
};

enum class Better {
  kMore,
  kLess,
  kNone,  // the metric is a table and has no number
};

struct MetricRow {
  LossRow term;  // name, arguments, options; `formula`, `over` and `source` are for documentation
  const Statistic* statistic;
  // The sums have the statistic's shape. Options of the term that are choices matter here alone.
  MetricValue (*finish)(const Tensor& sums, const LossTerm& term);
  Better better = Better::kMore;
  bool is_fraction = false;  // shown as a percentage
};

// Null if there is none of that name.
const MetricRow* find_metric(const std::string& name);
const std::vector<MetricRow>& metric_rows();
// The part of docs/metrics.md that follows from the rows, as Markdown.
std::string metric_reference();

// Statistics: statistics.cc.
extern const Statistic kHits;       // [2]: Σ w right, Σ w
extern const Statistic kTopHits;    // the same, right where the label is among the first k
extern const Statistic kCounts;     // [4,C]: Σ w of hits, of predictions, of labels, of all, for each class
extern const Statistic kConfusion;  // [C,C]: Σ w by label and prediction
extern const Statistic kScores;     // [C,2,B]: Σ w by class, whether the label is that class, and bin of the score
extern const Statistic kLogLoss;    // [2]: Σ -w log p[label], Σ w
extern const Statistic kErrors;     // [4]: Σ w, Σ w |x - t|, Σ w (x - t)², Σ w |x - t|/|t|
extern const Statistic kMoments;  // [8,D]: n, Σ w, Σ w (x - t)², Σ w x, Σ w x², Σ w t, Σ w t², Σ w x t, by column
extern const Statistic kCosines;  // [2]: Σ w cos, Σ w

// Rows in two families: class_metrics.cc, value_metrics.cc.
std::vector<MetricRow> class_metrics();
std::vector<MetricRow> value_metrics();

}  // namespace onnx_train
