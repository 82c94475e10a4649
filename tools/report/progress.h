// What `fit` prints while it trains: on a terminal one line that is redrawn, in a log plain lines from time to time,
// with --json one object a step, beside a dashboard evaluations alone. Colour on a terminal only, never with NO_COLOR.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/runs/metrics_log.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

enum class ProgressForm { kText, kJson, kEvaluations };

class Progress : public TrainerEvents {
 public:
  // The sinks receive all that is reported, and must outlive this.
  Progress(const Trainer& trainer, std::vector<MetricsSink*> sinks, ProgressForm form);

  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;
  void on_note(const std::string& text) override;

 private:
  std::string step_line(const StepReport& report, size_t width) const;

  using Clock = std::chrono::steady_clock;
  const Trainer& trainer_;
  std::vector<MetricsSink*> sinks_;
  const ProgressForm form_;
  bool json_, terminal_, colour_;
  Clock::time_point last_shown_{};
  double recent_milliseconds_ = 0;  // a moving mean
};

}  // namespace onnx_train
