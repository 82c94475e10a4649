#include "tools/dashboard/dashboard.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"
#include "runtime/training/metric_sums.h"
#include "tools/run_report/report_tables.h"
#include "tools/run_report/text_chart.h"

namespace onnx_train {
namespace {

constexpr const char *kTraining = "36", *kEvaluation = "33", *kStrong = "1", *kSoft = "2";
constexpr size_t kMostPoints = 4000;  // of a curve: more than a terminal has dots

// Text from files, of which a terminal would take control characters for commands, and some as two columns wide.
std::string plain(const std::string& text) {
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    // Two bytes up to U+02FF: Latin letters, which are one column wide.
    if (byte >= 0xc3 && byte <= 0xcb && (next & 0xc0U) == 0x80U) {
      safe += text.substr(i++, 2);
    } else if (byte < 0x80) {
      safe += byte >= ' ' && byte != 0x7f ? text[i] : ' ';
    } else if ((byte & 0xc0U) != 0x80U) {
      safe += '?';
    }
  }
  return safe;
}

// `left`, and `right` at the right edge as far as there is room.
std::string both_ends(const std::string& left, const std::string& right, size_t columns) {
  const size_t used = text_columns(right);
  if (used + 2 > columns) return shorten(left, columns);
  const std::string first = shorten(left, columns - used - 2);
  return concat(first, std::string(columns - used - text_columns(first), ' '), right);
}

class Dashboard {
 public:
  Dashboard(const RunFiles& run, const DashboardSettings& settings, size_t columns, size_t rows)
      : run_(run), settings_(settings), columns_(columns), rows_(rows) {}

  std::vector<std::string> lines() {
    const std::string what = plain(std::filesystem::path(run_.option("MODEL")).filename().string()),
                      loss = plain(run_.derived("loss"));
    std::string title = plain(run_.name);
    for (const std::string& part : {what, loss, plain(run_.derived("optimizer"))}) {
      if (!part.empty()) title += "  " + part;
    }
    add(coloured(both_ends(title, settings_.state, columns_), kStrong));
    add(progress());
    add_figures();
    const size_t foot = settings_.keys.empty() ? 0 : 1;
    const size_t said = std::min(settings_.messages.size(), std::max<size_t>(2, rows_ / 10));
    const size_t used = lines_.size() + foot + said;
    if (rows_ > used) add_charts(rows_ - used);
    while (lines_.size() + foot + said < rows_) lines_.emplace_back();
    for (size_t i = settings_.messages.size() - said; i < settings_.messages.size(); ++i) {
      add(shorten(plain(settings_.messages[i]), columns_));
    }
    if (foot > 0) add(coloured(shorten(settings_.keys, columns_), kSoft));
    lines_.resize(std::min(lines_.size(), rows_));
    return std::move(lines_);
  }

 private:
  void add(const std::string& line) { lines_.push_back(line); }
  std::string coloured(const std::string& text, const char* colour) const {
    return settings_.colour ? in_colour(text, colour) : text;
  }

  double last(const char* column) const {
    const auto* values = run_.steps.column(column);
    return values && !values->empty() ? values->back() : std::nan("");
  }
  double total_steps() const {
    const auto* total = run_.find_derived("steps");
    return total && total->is_number() ? total->get<double>() : 0;
  }
  // Of the last steps, in milliseconds.
  double recent_time() const {
    constexpr size_t kSteps = 100;
    const auto* times = run_.steps.column("ms");
    if (!times || times->empty()) return std::nan("");
    const size_t n = std::min(kSteps, times->size());
    double sum = 0;
    for (size_t i = times->size() - n; i < times->size(); ++i) sum += (*times)[i];
    return sum / static_cast<double>(n);
  }

  std::string progress() const {
    const double step = run_.steps.rows() > 0 ? last("step") : 0, total = total_steps();
    const std::string epochs = run_.option("epochs");
    std::vector<std::string> parts = {
        concat("step ", static_cast<int64_t>(step), total > 0 ? concat("/", static_cast<int64_t>(total)) : "")};
    if (run_.steps.rows() > 0) {
      parts.push_back(concat("epoch ", static_cast<int64_t>(last("epoch")), epochs.empty() ? "" : "/" + plain(epochs)));
      parts.push_back("time " + format_duration(elapsed(run_).y.back()));
    }
    const double left = (total - step) * recent_time() / 1e3;
    if (total > 0 && run_.running && left >= 0) parts.push_back("ETA " + format_duration(left));
    if (const std::string limit = plain(run_.option("time-limit")); !limit.empty()) parts.push_back("limit " + limit);
    std::string line;
    for (const std::string& part : parts) {
      const std::string longer = line.empty() ? part : concat(line, "  ", part);
      if (text_columns(longer) > columns_) break;
      line = longer;
    }
    constexpr size_t kShortest = 10;
    const size_t used = text_columns(line) + 7;
    if (!(total > 0) || used + kShortest > columns_) return line;
    const double share = std::clamp(step / total, 0.0, 1.0);
    const size_t length = columns_ - used;
    const auto done = static_cast<size_t>(share * static_cast<double>(length));
    std::string bar, rest;
    for (size_t i = 0; i < length; ++i) (i < done ? bar : rest) += i < done ? "━" : "─";
    const std::string percent = std::to_string(static_cast<int>(100 * share)) + "%";
    return concat(line, "  ", coloured(bar, "32"), coloured(rest, kSoft), std::string(5 - percent.size(), ' '),
                  percent);
  }

  // The value of an evaluation at a step.
  static double at(const Series& series, double step) {
    for (size_t i = series.size(); i-- > 0;) {
      if (series.x[i] == step) return series.y[i];
    }
    return std::nan("");
  }

  // Figures side by side, on as many lines as they need.
  void add_figures() {
    std::vector<std::string> figures;
    if (run_.steps.rows() > 0) {
      figures.push_back("loss " + format_number(last("loss")));
      if (const double accuracy = last("accuracy"); !std::isnan(accuracy)) {
        figures.push_back("accuracy " + format_percent(accuracy));
      }
    }
    for (const auto& [key, series] : run_.evaluations) {
      if (key.starts_with("eval_") && series.size() > 0) {
        const std::string name = key.substr(5);
        figures.push_back(concat("eval ", plain(name), " ", metric_text(name, series.y.back())));
      }
    }
    if (run_.best_step > 0) {
      const std::string name = run_.option("best");
      const auto evaluated = run_.evaluations.count("eval_" + name) > 0 ? run_.evaluations.find("eval_" + name)
                                                                        : run_.evaluations.find("train_loss");
      if (evaluated != run_.evaluations.end()) {
        figures.push_back(concat("best ", evaluated->first == "train_loss" ? "train loss" : plain(name), " ",
                                 metric_text(name, at(evaluated->second, run_.best_step)), " at step ",
                                 static_cast<int64_t>(run_.best_step)));
      }
    }
    if (run_.steps.rows() > 0) {
      figures.push_back("lr " + format_number(last("lr")));
      figures.push_back("|grad| " + format_number(last("grad_norm")));
      const double ms = recent_time();
      const bool has_tokens = run_.steps.column("tokens") && last("tokens") > 0;
      const char* const unit = has_tokens ? "tokens" : "samples";
      figures.push_back(concat(format_count(1e3 * last(unit) / ms), " ", unit, "/s"));
      figures.push_back(format_number(ms) + " ms a step");
    }
    if (const std::string device = plain(run_.derived("device")); !device.empty()) {
      const std::string threads = run_.derived("threads");
      figures.push_back(
          concat(device, device == "cpu" && !threads.empty() ? concat(", threads ", plain(threads)) : ""));
    }
    const auto* memory = run_.find_derived("memory");
    const bool planned = memory && memory->is_object() && memory->contains("total") && (*memory)["total"].is_number();
    if (settings_.peak_memory > 0) figures.push_back("memory " + format_bytes(settings_.peak_memory));
    if (planned) figures.push_back("planned memory " + format_bytes((*memory)["total"].get<double>()));
    std::string line;
    for (const std::string& figure : figures) {
      if (line.empty()) {
        line = shorten(figure, columns_);
      } else if (text_columns(line) + 3 + text_columns(figure) <= columns_) {
        line += "   " + figure;
      } else {
        add(line);
        line = shorten(figure, columns_);
      }
    }
    if (!line.empty()) add(line);
  }

  // The mean over a fiftieth of the steps, as a report draws it.
  TextCurve training_curve(Series series) const {
    constexpr size_t kMany = 100;
    if (series.size() >= kMany) series = smoothed(series, series.size() / 50);
    return {"", thinned(series, kMostPoints), settings_.colour ? kTraining : "", false};
  }

  // A column of the steps and an evaluation, as far as the run has them.
  std::vector<TextCurve> curves(const std::string& column, const std::string& evaluation) const {
    std::vector<TextCurve> found;
    const auto *steps = run_.steps.column("step"), *values = run_.steps.column(column);
    if (steps && values) found.push_back(training_curve({*steps, *values}));
    const auto evaluated = run_.evaluations.find(evaluation);
    if (evaluated != run_.evaluations.end()) {
      const std::string name = found.empty() ? "" : "o evaluation";
      found.push_back({name, thinned(evaluated->second, kMostPoints), settings_.colour ? kEvaluation : "", true});
      if (!name.empty()) found.front().name = "training";
    }
    return found;
  }

  // Without the first step, which makes ready what the others use.
  std::vector<TextCurve> throughput() const {
    const auto *steps = run_.steps.column("step"), *samples = run_.steps.column("samples"),
               *times = run_.steps.column("ms");
    if (!steps || !samples || !times) return {};
    Series series;
    for (size_t i = steps->size() > 1 ? 1 : 0; i < steps->size(); ++i) {
      series.x.push_back((*steps)[i]);
      series.y.push_back(1e3 * (*samples)[i] / (*times)[i]);
    }
    return {training_curve(std::move(series))};
  }

  struct ChartOf {
    std::string title;
    std::vector<TextCurve> curves;
  };

  // The large chart first.
  std::vector<ChartOf> charts() const {
    const std::string& metric = settings_.metric;
    std::vector<ChartOf> list;
    const bool is_evaluation = !run_.steps.column(metric) && run_.evaluations.count(metric) > 0;
    list.push_back({plain(metric), is_evaluation ? curves("", metric) : curves(metric, "eval_" + metric)});
    for (const auto& [title, column] : {std::pair("loss", "loss"), std::pair("learning rate", "lr")}) {
      if (metric != column) list.push_back({title, curves(column, concat("eval_", column))});
    }
    list.push_back({"samples/s", throughput()});
    for (const auto& [title, column] : {std::pair("accuracy", "accuracy"), std::pair("|grad|", "grad_norm")}) {
      if (metric != column) list.push_back({title, curves(column, concat("eval_", column))});
    }
    for (const auto& [key, series] : run_.evaluations) {
      const bool shown = key == metric || key == "eval_loss" || key == "eval_accuracy" || key == "eval_" + metric;
      if (key.starts_with("eval_") && !shown) list.push_back({"eval " + plain(key.substr(5)), curves("", key)});
    }
    std::erase_if(list, [](const ChartOf& chart) { return chart_lines("", chart.curves, 80, 1).empty(); });
    return list;
  }

  // The first chart over the whole width, the others below it side by side.
  void add_charts(size_t rows) {
    constexpr size_t kTexts = 2;  // a title and the steps
    constexpr size_t kLeast = 3, kNarrowest = 36, kGap = 2;
    std::vector<ChartOf> list = charts();
    if (list.empty() || rows < kTexts + kLeast) return;
    const size_t others = std::min(list.size() - 1, std::max<size_t>(1, (columns_ + kGap) / (kNarrowest + kGap)));
    size_t below = others > 0 ? rows * 2 / 5 : 0;
    if (below < kTexts + kLeast || rows - below < kTexts + kLeast) below = 0;
    for (std::string& line : chart_lines(list[0].title, list[0].curves, columns_, rows - below - kTexts)) {
      add(line);
    }
    if (below == 0) return;
    const size_t width = (columns_ - (others - 1) * kGap) / others;
    std::vector<std::string> joined(below);
    for (size_t i = 1; i <= others; ++i) {
      const auto lines = chart_lines(list[i].title, list[i].curves, width, below - kTexts);
      for (size_t row = 0; row < below; ++row) {
        const std::string line = row < lines.size() ? lines[row] : "";
        joined[row] += line;
        if (i < others) joined[row] += std::string(width + kGap - std::min(visible_columns(line), width), ' ');
      }
    }
    for (const std::string& line : joined) add(line);
  }

  // Without the sequences that set colours.
  static size_t visible_columns(const std::string& line) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\x1b') {
        i = line.find('m', i);
      } else {
        text += line[i];
      }
    }
    return text_columns(text);
  }

  const RunFiles& run_;
  const DashboardSettings& settings_;
  const size_t columns_, rows_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> dashboard(const RunFiles& run, const DashboardSettings& settings, size_t columns,
                                   size_t rows) {
  return Dashboard(run, settings, columns, rows).lines();
}

}  // namespace onnx_train
