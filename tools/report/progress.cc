#include "tools/report/progress.h"

#include <cstdio>
#include <cstdlib>

#include "onnx_passes/ir/error.h"
#include "runtime/format.h"
#include "tools/report/output.h"
#include "tools/report/process_memory.h"

namespace onnx_train {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainLine = std::chrono::seconds(2);
constexpr int kBarWidth = 20;

std::string bar(double fraction) {
  const int done = static_cast<int>(fraction * kBarWidth);
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) text += i < done ? "━" : "─";
  return text;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", fraction * 100);
  return text;
}

}  // namespace

Progress::Progress(const Trainer& trainer, MetricsLog* log, bool json)
    : trainer_(trainer), log_(log), json_(json), terminal_(!json && is_terminal()) {
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = terminal_ && !(no_colour && *no_colour);
}

std::string Progress::step_line(const StepReport& r) const {
  const int64_t total = trainer_.total_steps();
  std::string line = concat("step ", r.step, total > 0 ? concat("/", total) : "", "  epoch ", r.epoch);
  if (trainer_.options().epochs > 0) line += concat("/", trainer_.options().epochs);
  line += "  loss " + format_number(r.loss);
  if (r.accuracy) line += "  accuracy " + percent(*r.accuracy);
  line += "  |grad| " + format_number(r.grad_norm) + "  lr " + format_number(r.learning_rate);
  if (r.loss_scale) line += "  scale " + format_number(*r.loss_scale);
  if (trainer_.skipped_steps() > 0) line += concat("  skipped ", trainer_.skipped_steps());
  line += "  " + format_number(recent_milliseconds_) + " ms";
  line += "  " + format_count(static_cast<double>(r.samples) / recent_milliseconds_ * 1e3) + " samples/s";
  if (total > 0) line += "  ETA " + format_duration(static_cast<double>(total - r.step) * recent_milliseconds_ / 1e3);
  return line + "  peak " + format_bytes(peak_memory());
}

void Progress::on_step(const StepReport& r) {
  constexpr double kMemory = 0.9;
  const bool first = recent_milliseconds_ == 0;
  recent_milliseconds_ = first ? r.milliseconds : kMemory * recent_milliseconds_ + (1 - kMemory) * r.milliseconds;
  if (log_) log_->add(r);
  if (json_) {
    return print(to_json(r) + "\n");
  }
  const auto now = Clock::now();
  const bool last = r.step == trainer_.total_steps();
  if (!last && now - last_shown_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine))) return;
  last_shown_ = now;
  if (!terminal_) return print(step_line(r) + "\n");
  const size_t width = text_width() - 1;  // a line as wide as the terminal would wrap, and could not be redrawn
  const int64_t total = trainer_.total_steps();
  std::string line = step_line(r), drawn;
  if (line.size() > width) line.resize(width);
  if (total > 0 && line.size() + kBarWidth + 1 <= width) {
    drawn = bar(static_cast<double>(r.step) / static_cast<double>(total)) + " ";
    if (colour_) drawn = "\x1b[32m" + drawn + "\x1b[0m";
  }
  show_status(drawn + line);
}

void Progress::on_evaluation(const EvaluationReport& r) {
  if (log_) log_->add(r);
  if (json_) {
    return print(to_json(r) + "\n");
  }
  const bool by_steps = trainer_.options().eval_every > 0 || r.step % trainer_.steps_per_epoch() != 0;
  std::string line = concat(by_steps ? concat("step ", r.step, "  ") : "", "epoch ", r.epoch, "  train loss ",
                            format_number(r.train_loss));
  for (const auto& [name, value] : r.evaluation) {
    line += concat("  eval ", name, " ", name == "accuracy" ? percent(value) : format_number(value));
  }
  if (r.best) line += colour_ ? "  \x1b[1mbest\x1b[0m" : "  best";
  print(line + "\n");
}

}  // namespace onnx_train
