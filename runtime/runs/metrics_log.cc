#include "runtime/runs/metrics_log.h"

#include <cerrno>
#include <cstring>
#include <sstream>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "platform/lock.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

using Columns = std::vector<std::string>;

// The columns of metrics.csv, before those of a loss's own metrics, and the keys of metrics.jsonl, which leaves out
// what a model does not have.
constexpr const char* kColumns[] = {"step",    "epoch",    "loss",       "lr",     "grad_norm",  "ms",
                                    "samples", "accuracy", "loss_scale", "tokens", "utilization"};

Columns with_metrics(const std::vector<std::string>& metrics) {
  Columns columns(std::begin(kColumns), std::end(kColumns));
  columns.insert(columns.end(), metrics.begin(), metrics.end());
  return columns;
}

std::string table_header(const Columns& columns) {
  std::string header;
  for (const std::string& column : columns) header += concat(header.empty() ? "" : ",", column);
  return header + "\n";
}

template <typename Json>
std::string table_row(const Columns& columns, const Json& object) {
  std::string row;
  for (const std::string& column : columns) {
    if (&column != columns.data()) row += ",";
    if (object.contains(column)) row += object[column].dump();
  }
  return row + "\n";
}

ordered_json json_of(const StepReport& r) {
  ordered_json object = {{"step", r.step},        {"epoch", r.epoch},         {"loss", r.loss},
                         {"lr", r.learning_rate}, {"grad_norm", r.grad_norm}, {"ms", r.milliseconds},
                         {"samples", r.samples}};
  if (r.tokens > 0) object["tokens"] = r.tokens;
  if (r.utilization) object["utilization"] = *r.utilization;
  if (r.accuracy) object["accuracy"] = *r.accuracy;
  if (r.loss_scale) object["loss_scale"] = *r.loss_scale;
  if (r.skipped) object["skipped"] = true;
  for (const auto& [name, value] : r.metrics) object[name] = value;
  return object;
}

// The lines of a file, without the last one where that is incomplete, as long as `wanted` likes what they hold.
template <typename Wanted>
std::string keep_lines(const std::string& path, Wanted&& wanted) {
  if (!path_exists(path)) return "";
  std::istringstream file(read_file(path));
  std::string kept, line;
  while (std::getline(file, line) && !file.eof()) {
    if (!wanted(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false))) break;
    kept += line + "\n";
  }
  return kept;
}

nlohmann::ordered_json nested(const Tensor& tensor, size_t axis, int64_t* at) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < tensor.shape()[axis]; ++i) {
    if (axis + 1 < tensor.shape().size()) {
      list.push_back(nested(tensor, axis + 1, at));
    } else {
      list.push_back(tensor.at((*at)++));  // NaN becomes null
    }
  }
  return list;
}

}  // namespace

nlohmann::ordered_json to_json(const MetricTables& tables) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, values] : tables) {
    int64_t at = 0;
    object[name] = nested(values, 0, &at);
  }
  return object;
}

std::string to_json(const StepReport& r) { return json_of(r).dump(); }

std::string to_json(const EvaluationReport& r) {
  ordered_json object = {{"step", r.step}, {"epoch", r.epoch}, {"train_loss", r.train_loss}};
  for (const auto& [name, value] : r.evaluation) object["eval_" + name] = value;
  object["best"] = r.best;
  return object.dump();
}

MetricsLog::Lines::Lines(const std::string& to, const std::string& kept) : path(to) {
  write_file(path, kept);
  file = platform::open_to_append(path);
  if (!file.is_open()) fail_as(ErrorCode::kFile, "cannot write ", path, ": ", std::strerror(errno));
}

void MetricsLog::Lines::add(const std::string& line) {
  if (!file.write(line.data(), line.size()))
    fail_as(ErrorCode::kFile, "cannot write ", path, ": ", std::strerror(errno));
}

MetricsLog::MetricsLog(const std::string& folder, int64_t step, std::vector<std::string> classes,
                       const std::vector<std::string>& metrics)
    : columns_(with_metrics(metrics)), best_(concat(folder, "/", kBestEvaluation)), classes_(std::move(classes)) {
  if (step == 0) remove_file(best_);  // of a run that this one overwrites
  const auto early = [&](const nlohmann::json& object) {
    return step > 0 && object.is_object() && object.contains("step") && object["step"].is_number_integer() &&
           object["step"] <= step;
  };
  const std::string steps = keep_lines(folder + "/metrics.jsonl", early);
  std::string rows = table_header(columns_);
  std::istringstream lines(steps);
  for (std::string line; std::getline(lines, line);) rows += table_row(columns_, nlohmann::json::parse(line));
  steps_.emplace(folder + "/metrics.jsonl", steps);
  platform::lock_file(steps_->file);  // a file system without locks is one where `watch` does not wait
  table_.emplace(folder + "/metrics.csv", rows);
  epochs_.emplace(folder + "/epochs.jsonl", keep_lines(folder + "/epochs.jsonl", early));
}

void MetricsLog::add(const StepReport& r) {
  const ordered_json object = json_of(r);
  steps_->add(object.dump() + "\n");
  table_->add(table_row(columns_, object));
}

void MetricsLog::add(const EvaluationReport& r) {
  epochs_->add(to_json(r) + "\n");
  if (!r.best || r.tables.empty()) return;
  const ordered_json best = {{"step", r.step},
                             {"epoch", r.epoch},
                             {"metrics", r.evaluation},
                             {"classes", classes_},
                             {"tables", to_json(r.tables)}};
  write_file(best_, best.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace onnx_train
