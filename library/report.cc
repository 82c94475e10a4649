// Reports and schedules of the C interface.
#include "library/guard.h"
#include "library/handles.h"
#include "onnx_passes/ir/message.h"
#include "runtime/support/report_text.h"
#include "runtime/training/schedule.h"

namespace onnx_train {
namespace {

constexpr const char* kName = "model.onnx";  // a model in memory has no name of its own

onnx_train_report* make_report(const onnx_train_model& model, const CheckSettings& settings) {
  auto made = std::make_unique<onnx_train_report>();
  made->report = check_model(model.message, kName, settings);
  made->text = to_text(made->report, kName, kPlainWidth, 0);
  for (const Hindrance& h : made->report.obstacles) {
    made->obstacles.push_back({h.place.c_str(), h.reason.c_str(), h.way_out.c_str()});
  }
  for (const Finding& f : made->report.findings) {
    made->findings.push_back({f.subject.c_str(), f.what.c_str(), f.advice.c_str()});
  }
  return made.release();
}

size_t give(const std::vector<onnx_train_finding>& found, const onnx_train_finding** to) {
  if (to) *to = found.data();
  return found.size();
}

double rate_of(const onnx_train_option* options, size_t count, int64_t step) {
  if (step < 0) throw UsageError(concat("step ", step, " of a schedule; steps are counted from 0"));
  ScheduleSettings settings;
  int64_t total = 0;
  std::vector<CommandOption> known = schedule_options(&settings);
  known.push_back({"--steps", &total, "", "N"});
  read_options(options, count, known);
  if (settings.find_rate) throw UsageError("a schedule alone has no lr of auto, which only a training finds");
  Schedule schedule = resolve(settings, Schedule().peak);
  schedule.end_at(total);
  if (total == 0 && schedule.curve.needs_end()) throw UsageError(concat("schedule ", settings.curve, " needs steps"));
  return schedule.rate(step);
}

}  // namespace
}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_model_check(const onnx_train_model* forward, const onnx_train_option* options,
                                         size_t count, onnx_train_report** report) {
  return guarded([&] {
    required(report, "where the report goes");
    CheckSettings settings;
    read_options(options, count, check_options(&settings));
    *report = make_report(required(forward, "the forward model"), settings);
  });
}

void onnx_train_report_free(onnx_train_report* report) { delete report; }

const char* onnx_train_report_text(const onnx_train_report* report) { return report ? report->text.c_str() : ""; }

const char* onnx_train_report_loss(const onnx_train_report* report) {
  return report ? report->report.loss.c_str() : "";
}

const char* onnx_train_report_failure(const onnx_train_report* report) {
  return report ? report->report.failure.c_str() : "";
}

size_t onnx_train_report_obstacles(const onnx_train_report* report, const onnx_train_finding** obstacles) {
  return report ? give(report->obstacles, obstacles) : 0;
}

size_t onnx_train_report_findings(const onnx_train_report* report, const onnx_train_finding** findings) {
  return report ? give(report->findings, findings) : 0;
}

onnx_train_status onnx_train_learning_rate(const onnx_train_option* options, size_t count, int64_t step, double* rate) {
  return guarded([&] { required(rate, "where the rate goes") = rate_of(options, count, step); });
}
}
