#include "tools/report/progress.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "platform/memory.h"
#include "runtime/support/report_text.h"
#include "tools/report/output.h"

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

}  // namespace

Progress::Progress(const Trainer& trainer, std::vector<MetricsSink*> sinks, ProgressForm form)
    : trainer_(trainer),
      sinks_(std::move(sinks)),
      form_(form),
      json_(form == ProgressForm::kJson),
      terminal_(form == ProgressForm::kText && is_terminal()) {
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = terminal_ && !(no_colour && *no_colour);
}

// Of at most `width` columns: what comes last is left out. 0: all of it.
std::string Progress::step_line(const StepReport& r, size_t width) const {
  const int64_t total = trainer_.total_steps(), epochs = trainer_.options().epochs;
  std::vector<std::string> parts = {concat("step ", r.step, total > 0 ? concat("/", total) : ""),
                                    concat("epoch ", r.epoch, epochs > 0 ? concat("/", epochs) : ""),
                                    "loss " + format_number(r.loss)};
  if (r.accuracy) parts.push_back("accuracy " + format_percent(*r.accuracy));
  for (const auto& [name, value] : r.metrics) parts.push_back(concat(name, " ", format_number(value)));
  parts.push_back("|grad| " + format_number(r.grad_norm));
  parts.push_back("lr " + format_number(r.learning_rate));
  if (r.loss_scale) parts.push_back("scale " + format_number(*r.loss_scale));
  if (trainer_.skipped_steps() > 0) parts.push_back(concat("skipped ", trainer_.skipped_steps()));
  parts.push_back(format_number(recent_milliseconds_) + " ms");
  const auto rate = [&](int64_t count) {
    return format_count(static_cast<double>(count) / recent_milliseconds_ * 1e3);
  };
  parts.push_back(r.tokens > 0 ? rate(r.tokens) + " tokens/s" : rate(r.samples) + " samples/s");
  if (r.utilization) parts.push_back("utilization " + format_percent(*r.utilization));
  if (total > 0) {
    parts.push_back("ETA " + format_duration(static_cast<double>(total - r.step) * recent_milliseconds_ / 1e3));
  }
  parts.push_back("peak " + format_bytes(platform::peak_memory()));
  std::string line;
  for (const std::string& part : parts) {
    const std::string longer = line.empty() ? part : concat(line, "  ", part);
    if (width > 0 && text_columns(longer) > width) break;
    line = longer;
  }
  return line;
}

void Progress::on_step(const StepReport& r) {
  constexpr double kMemory = 0.9;
  const bool first = recent_milliseconds_ == 0;
  recent_milliseconds_ = first ? r.milliseconds : kMemory * recent_milliseconds_ + (1 - kMemory) * r.milliseconds;
  for (MetricsSink* sink : sinks_) sink->add(r);
  if (json_) {
    return print(to_json(r) + "\n");
  }
  if (form_ == ProgressForm::kEvaluations) return;
  const auto now = Clock::now();
  const bool last = r.step == trainer_.total_steps();
  if (!last && now - last_shown_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine))) return;
  last_shown_ = now;
  if (!terminal_) return print(step_line(r, table_width()) + "\n");
  const size_t width = text_width() - 1;  // a line as wide as the terminal would wrap, and could not be redrawn
  const int64_t total = trainer_.total_steps();
  std::string line = step_line(r, width), drawn;
  if (total > 0 && line.size() + kBarWidth + 1 <= width) {
    drawn = bar(static_cast<double>(r.step) / static_cast<double>(total)) + " ";
    if (colour_) drawn = "\x1b[32m" + drawn + "\x1b[0m";
  }
  show_status(drawn + line);
}

void Progress::on_note(const std::string& text) {
  print(json_ ? nlohmann::json{{"note", text}}.dump() + "\n" : concat("note: ", text, "\n"));
}

void Progress::on_evaluation(const EvaluationReport& r) {
  for (MetricsSink* sink : sinks_) sink->add(r);
  if (json_) {
    return print(to_json(r) + "\n");
  }
  const int64_t epoch = trainer_.steps_per_epoch();  // 0 of a stream
  const bool by_steps = trainer_.options().eval_every > 0 || epoch == 0 || r.step % epoch != 0;
  std::string line = concat(by_steps ? concat("step ", r.step, "  ") : "", "epoch ", r.epoch, "  train loss ",
                            format_number(r.train_loss));
  for (const auto& [name, value] : r.evaluation) {
    line += concat("  eval ", name, " ", metric_text(name, value));
  }
  line = wrap(r.best ? line + "  best" : line, text_width(), 0, 2);
  if (r.best && colour_) line.replace(line.rfind("best"), 4, "\x1b[1mbest\x1b[0m");
  print(line + "\n");
}

}  // namespace onnx_train
