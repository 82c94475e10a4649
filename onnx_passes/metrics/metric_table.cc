#include "onnx_passes/metrics/metric_table.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train {

const std::vector<MetricRow>& metric_rows() {
  static const std::vector<MetricRow> all = [] {
    std::vector<MetricRow> rows = class_metrics();
    for (MetricRow& row : value_metrics()) rows.push_back(std::move(row));
    for (MetricRow& row : rows) {
      row.term.options.push_back({"sample_weight", OptionKind::kSampleWeight});
    }
    return rows;
  }();
  return all;
}

const MetricRow* find_metric(const std::string& name) {
  for (const MetricRow& row : metric_rows()) {
    if (name == row.term.name) return &row;
  }
  return nullptr;
}

std::string metric_reference() {
  const auto better = [](Better which) {
    return which == Better::kMore   ? " More is better."
           : which == Better::kLess ? " Less is better."
                                    : " A table: it has no number for `--best`.";
  };
  std::string text;
  for (const MetricRow& row : metric_rows()) {
    text += reference_of(row.term, concat(row.term.formula, "\n\nOver ", row.term.over, ".", better(row.better), " ",
                                          row.term.source, "."));
  }
  return text;
}

}  // namespace onnx_train
