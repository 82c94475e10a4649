#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/report_text.h"
#include "tools/report/output.h"
#include "tools/run_report/report_tables.h"
#include "tools/run_report/text_chart.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct WatchArguments {
  std::string run, metric = "loss";
  double every = 1;
};

// "step 12/540  epoch 2  loss 0.31 ...": the last step, as far as it fits.
std::string last_step(const RunFiles& run, size_t width) {
  const auto value = [&](const char* name) {
    const auto* column = run.steps.column(name);
    return column && !column->empty() ? column->back() : std::nan("");
  };
  if (run.steps.rows() == 0) return "no step yet";
  const std::string total = run.derived("steps");
  std::vector<std::string> parts = {
      concat("step ", static_cast<int64_t>(value("step")), total.empty() ? "" : "/" + total),
      concat("epoch ", static_cast<int64_t>(value("epoch"))), concat("loss ", format_number(value("loss")))};
  if (const double accuracy = value("accuracy"); !std::isnan(accuracy)) {
    parts.push_back("accuracy " + format_percent(accuracy));
  }
  for (const auto& [key, series] : run.evaluations) {
    if (key.starts_with("eval_") && series.size() > 0) {
      parts.push_back(concat("eval ", key.substr(5), " ", format_number(series.y.back())));
    }
  }
  parts.push_back("|grad| " + format_number(value("grad_norm")));
  parts.push_back("lr " + format_number(value("lr")));
  parts.push_back(format_number(value("ms")) + " ms");
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : concat(line, "  ", part);
    if (width > 0 && text_columns(longer) > width) break;
    line = longer;
  }
  return line;
}

std::string chart_of(const RunFiles& run, const std::string& metric, size_t width) {
  constexpr size_t kRows = 8;
  const auto *steps = run.steps.column("step"), *values = run.steps.column(metric);
  if (steps && values) return text_chart(metric, {*steps, *values}, width, kRows);
  const auto evaluated = run.evaluations.find(metric);
  return evaluated == run.evaluations.end() ? "" : text_chart(metric, evaluated->second, width, kRows);
}

void check_metric(const RunFiles& run, const std::string& metric) {
  if (run.steps.names().empty() || run.steps.column(metric) || run.evaluations.count(metric)) return;
  std::string known;
  for (const std::string& name : run.steps.names()) known += concat(known.empty() ? "" : ", ", name);
  for (const auto& [name, series] : run.evaluations) known += ", " + name;
  throw UsageError(concat("the run has no metric '", metric, "'; it has ", known));
}

// On a terminal the chart is drawn anew in its place; elsewhere there is a line from time to time, and the chart at the
// end.
int watch(const WatchArguments& a) {
  size_t drawn = 0;  // lines
  std::chrono::steady_clock::time_point shown{};
  for (bool first = true;; first = false) {
    const bool running = is_running(a.run);  // before the files are read, so that nothing that it wrote is missed
    const RunFiles run = read_run(a.run);
    check_metric(run, a.metric);
    const size_t width = is_terminal() ? text_width() - 1 : text_width();
    const std::string line = last_step(run, width) + "\n";
    const std::string chart = chart_of(run, a.metric, std::min<size_t>(width, 100));
    const std::string end = running ? "" : concat(first ? "not running: " : "ended: ", a.run, "\n");
    if (is_terminal()) {
      const std::string up = drawn > 0 ? concat("\x1b[", drawn, "A\x1b[J") : "";
      print(up + chart + line + end);
      drawn = static_cast<size_t>(std::count(chart.begin(), chart.end(), '\n')) + 1;
    } else if (!running) {
      print(chart + line + end);
    } else if (std::chrono::steady_clock::now() - shown >= std::chrono::seconds(2)) {
      print(line);
      shown = std::chrono::steady_clock::now();
    }
    if (!running) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(a.every));
  }
}

}  // namespace

Subcommand watch_command() {
  auto a = std::make_shared<WatchArguments>();
  return {
      "watch",
      "Follow a run that another process trains: its last step and a chart; ends when the run does",
      "  onnx-train watch run\n"
      "  onnx-train watch run --metric eval_loss",
      {{"RUN", &a->run, "the run's folder, the --out of fit", "DIR", true},
       {"--metric", &a->metric, "what the chart shows: a column of metrics.csv, or of an evaluation [loss]", "NAME"},
       {"--every", {&a->every, Range{0.01, false, 3600}}, "seconds between two looks [1]", "S"}},
      [a] { return watch(*a); }};
}

}  // namespace onnx_train
