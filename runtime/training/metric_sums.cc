#include "runtime/training/metric_sums.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

std::vector<Metric> metrics_of(const Model& model) {
  const std::string text = model.metadata(kMetrics);
  std::vector<Metric> found;
  if (text.empty()) return found;
  const auto list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) fail("the metadata ", kMetrics, " are damaged: they are no list; build the model anew");
  for (const auto& item : list) {
    if (item.is_string()) found.push_back(parse_metric(item.get<std::string>()));
  }
  return found;
}

bool has_shape(const Tensor& tensor, const std::vector<int64_t>& wanted) {
  return std::ranges::equal(tensor.shape(), wanted, [](int64_t size, int64_t dim) { return dim < 0 || size == dim; });
}

}  // namespace

MetricSums::MetricSums(const Model& model) {
  const EntryPoint* evaluation = model.find_entry_point(Entry::kEvaluate);
  for (Metric& metric : metrics_of(model)) {
    const std::string statistic = statistic_of(metric);
    std::string name;
    for (const Value* output : evaluation ? evaluation->algorithm->outputs() : std::vector<Value*>()) {
      if (output->has_role(roles::kStatistic) && output->role()->of == statistic) name = output->name();
    }
    if (name.empty())
      fail("the model has no statistic ", statistic, " of the metric '", metric.name, "'; build it anew");
    sums_.try_emplace(name);
    metrics_.push_back({std::move(metric), name});
  }
}

std::vector<std::string> MetricSums::names() const {
  std::vector<std::string> names;
  for (const Record& record : metrics_) {
    if (record.metric.row->better != Better::kNone) names.push_back(record.metric.name);
  }
  return names;
}

std::vector<std::string> MetricSums::texts() const {
  std::vector<std::string> texts;
  for (const Record& record : metrics_) texts.push_back(to_string(record.metric));
  return texts;
}

void MetricSums::add(const TensorMap& statistics) {
  for (auto& [name, sum] : sums_) {
    const auto found = statistics.find(name);
    if (found == statistics.end())
      fail_as(ErrorCode::kUsage, "the statistic '", name, "' of the evaluation is missing");
    const Tensor& batch = found->second;
    if (sum.empty()) {
      sum = batch.cast(DType::kDouble).clone();
      continue;
    }
    if (batch.shape() != sum.shape()) {
      fail_as(ErrorCode::kData, "the statistic '", name, "' is ", to_string(batch.shape()), " in one batch and ",
              to_string(sum.shape()), " in another: the number of classes must not change");
    }
    for (int64_t i = 0; i < sum.size(); ++i) sum.set(i, sum.at(i) + batch.at(i));
  }
}

void MetricSums::finish(Metrics* metrics, MetricTables* tables) const {
  for (const auto& [metric, output] : metrics_) {
    const Tensor& sums = sums_.at(output);
    if (sums.empty()) continue;
    const Statistic& statistic = *metric.row->statistic;
    const bool is_matrix = &statistic == &kConfusion, yes_no = is_matrix && flag_of(metric.term, "multilabel");
    const bool is_square = !is_matrix || yes_no || (sums.shape().size() == 2 && sums.shape()[0] == sums.shape()[1]);
    if (!has_shape(sums, yes_no ? kCounts.shape : statistic.shape) || !is_square) {
      fail_as(ErrorCode::kData, "the statistic '", output, "' of the metric '", metric.name, "' is ",
              to_string(sums.shape()), ", which ", statistic.name, " never is");
    }
    MetricValue value = metric.row->finish(sums, metric.term);
    const bool is_number = metric.row->better != Better::kNone;
    if (is_number) (*metrics)[metric.name] = value.value;
    if (!value.table.empty()) (*tables)[metric.name + (is_number ? "_per_class" : "")] = std::move(value.table);
  }
}

bool more_is_better(const Model& model, const std::string& name) {
  for (const Metric& metric : metrics_of(model)) {
    if (metric.name == name) return metric.row->better == Better::kMore;
  }
  for (const char* word : {"loss", "error", "perplexity", "mae", "mse"}) {
    if (name.find(word) != std::string::npos) return false;
  }
  return true;
}

bool is_fraction(const std::string& name) {
  const MetricRow* row = find_metric(name);
  return row && row->is_fraction;
}

std::string metric_text(const std::string& name, double value) {
  return is_fraction(name) ? format_percent(value) : format_number(value);
}

}  // namespace onnx_train
