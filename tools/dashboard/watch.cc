#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"
#include "tools/dashboard/run_view.h"
#include "tools/interrupt.h"
#include "tools/report/output.h"
#include "tools/report/screen.h"
#include "tools/run_report/last_step.h"
#include "tools/run_report/run_files.h"
#include "tools/run_report/text_chart.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct WatchArguments {
  std::string run, metric = "loss";
  double every = 1;
};

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

// The dashboard, until the run ends. Returns whether the user left before.
bool show(const WatchArguments& a) {
  const std::atomic<bool>& stop = catch_interrupts();
  bool left = false;
  ViewSettings view;
  view.folder = a.run;
  view.metric = a.metric;
  view.keys = "q leaves; the run goes on";
  view.every = a.every;
  view.state = [](const RunFiles& run) { return run.running ? "running" : "ended"; };
  view.on_quit = [&] { left = true; };
  show_run(view, [&](const RunFiles& run) {
    check_metric(run, a.metric);
    return run.running && !left && !stop;
  });
  return left || stop;
}

// On a terminal the run is shown on the whole of it; elsewhere there is a line from time to time. The chart and the
// last step remain at the end.
int watch(const WatchArguments& a) {
  RunFiles run = read_run(a.run);
  check_metric(run, a.metric);
  const bool running = run.running;
  if (running && Screen::is_possible()) {
    if (show(a)) return catch_interrupts() ? kInterruptedStatus : 0;
    refresh(a.run, &run);
  }
  std::chrono::steady_clock::time_point shown{};
  while (run.running) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown >= std::chrono::seconds(2)) {
      print(last_step_line(run, table_width()) + "\n");
      shown = now;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(a.every));
    refresh(a.run, &run);
    check_metric(run, a.metric);
  }
  const size_t width = text_width();
  print(concat(chart_of(run, a.metric, std::min<size_t>(width, 100)), last_step_line(run, width), "\n",
               running ? "ended: " : "not running: ", a.run, "\n"));
  return 0;
}

}  // namespace

Subcommand watch_command() {
  auto a = std::make_shared<WatchArguments>();
  return {"watch",
          "Follow a run that another process trains: curves, rates and memory; ends when the run does",
          "  onnx-train watch run\n"
          "  onnx-train watch run --metric eval_loss",
          {{"RUN", &a->run, "the run's folder, the --out of fit", "DIR", true},
           {"--metric", &a->metric, "what the large chart shows: a column of metrics.csv, or of an evaluation [loss]",
            "NAME"},
           {"--every", {&a->every, Range{0.01, false, 3600}}, "seconds between two looks [1]", "S"}},
          [a] { return watch(*a); }};
}

}  // namespace onnx_train
