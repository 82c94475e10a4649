#include "tools/report/metrics_log.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/loading.h"

namespace onnx_train {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kTableHeader = "step,epoch,loss,lr,grad_norm,ms\n";

std::string number(double value) { return json(value).dump(); }

// The lines of a file, without the last one where that is incomplete, as long as `wanted` likes them.
template <typename Wanted>
std::string keep_lines(const std::string& path, Wanted&& wanted) {
  std::ifstream file(path);
  std::string kept, line;
  while (std::getline(file, line) && !file.eof()) {
    if (!wanted(line)) break;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string to_json(const StepReport& r) {
  ordered_json object = {{"step", r.step},        {"epoch", r.epoch},         {"loss", r.loss},
                         {"lr", r.learning_rate}, {"grad_norm", r.grad_norm}, {"ms", r.milliseconds}};
  if (r.accuracy) object["accuracy"] = *r.accuracy;
  return object.dump();
}

std::string to_json(const EvaluationReport& r) {
  ordered_json object = {{"step", r.step}, {"epoch", r.epoch}, {"train_loss", r.train_loss}};
  for (const auto& [name, value] : r.evaluation) object["eval_" + name] = value;
  object["best"] = r.best;
  return object.dump();
}

MetricsLog::File MetricsLog::open(const std::string& path, const std::string& kept) {
  write_file(path, kept);
  File file(std::fopen(path.c_str(), "a"));
  if (!file) fail("cannot write ", path, ": ", std::strerror(errno));
  return file;
}

MetricsLog::MetricsLog(const std::string& folder, int64_t step) {
  const auto early = [&](const std::string& line) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    return object.is_object() && object.value("step", int64_t{0}) <= step && step > 0;
  };
  const auto early_row = [&](const std::string& line) {
    return step > 0 && line + "\n" != kTableHeader && std::strtoll(line.c_str(), nullptr, 10) <= step;
  };
  const std::string steps = folder + "/metrics.jsonl", table = folder + "/metrics.csv",
                    epochs = folder + "/epochs.jsonl";
  std::string rows;
  if (step > 0) {
    rows = keep_lines(table, [&](const std::string& line) { return line + "\n" == kTableHeader || early_row(line); });
  }
  steps_ = open(steps, keep_lines(steps, early));
  table_ = open(table, rows.empty() ? kTableHeader : rows);
  epochs_ = open(epochs, keep_lines(epochs, early));
}

void MetricsLog::add(const StepReport& r) {
  std::fprintf(steps_.get(), "%s\n", to_json(r).c_str());
  std::fprintf(table_.get(), "%lld,%lld,%s,%s,%s,%s\n", static_cast<long long>(r.step), static_cast<long long>(r.epoch),
               number(r.loss).c_str(), number(r.learning_rate).c_str(), number(r.grad_norm).c_str(),
               number(r.milliseconds).c_str());
  std::fflush(steps_.get());
  std::fflush(table_.get());
}

void MetricsLog::add(const EvaluationReport& r) {
  std::fprintf(epochs_.get(), "%s\n", to_json(r).c_str());
  std::fflush(epochs_.get());
}

}  // namespace onnx_train
