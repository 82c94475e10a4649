// The metrics of an evaluation: the statistics that the entry point "evaluate" computes of each batch
// (onnx_passes/metrics/metrics.h), summed, and the numbers and tables that are made of the sums. Sums of several
// evaluations, such as those of processes that share the data, may be added, too: the result is that of all data at
// once. Plain values; any thread. Functions throw Error for a model whose metrics cannot be read and for statistics
// that are missing or have another shape.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/metrics/metrics.h"
#include "runtime/session/session.h"

namespace onnx_train {

using Metrics = std::map<std::string, double>;       // by name; not a number where nothing counts
using MetricTables = std::map<std::string, Tensor>;  // doubles: by class [C], or [C,C] by label and prediction

class MetricSums {
 public:
  explicit MetricSums(const Model& model);

  bool empty() const { return metrics_.empty(); }
  // The metrics as they were resolved: "f1(logits, labels, axis=1)".
  std::vector<std::string> texts() const;
  // Whether an output is a statistic that `add` reads.
  bool reads(const std::string& output) const { return sums_.count(output) > 0; }
  // The names of the metrics that are numbers.
  std::vector<std::string> names() const;
  // Adds the outputs of a run of "evaluate", or sums of such.
  void add(const TensorMap& statistics);
  // Adds to `metrics` the number of each metric, and to `tables` what it says by class: `f1_per_class` for `f1`,
  // `confusion_matrix` for a metric that has no number.
  void finish(Metrics* metrics, MetricTables* tables) const;

 private:
  struct Record {
    Metric metric;
    std::string output;  // the name of its statistic
  };
  std::vector<Record> metrics_;
  TensorMap sums_;  // by output; empty tensors before the first batch
};

// Whether more of a metric of the model is better: as its row says, or by its name. Less is of what is named as an
// error or a loss is.
bool more_is_better(const Model& model, const std::string& name);
// Whether a metric of this name is shown as a percentage.
bool is_fraction(const std::string& name);
// Its value as it is shown: "96.4%", "0.125".
std::string metric_text(const std::string& name, double value);

}  // namespace onnx_train
