#include "tools/run_report/report_page.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"
#include "runtime/training/metric_sums.h"
#include "tools/run_report/report_tables.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

// What the page's charts, text and style are made of: page.css and page.js.
constexpr const char* kStyle =
#include "run_report/page.css.inc"
    ;
constexpr const char* kScript =
#include "run_report/page.js.inc"
    ;

constexpr size_t kMostPoints = 2000;  // of a curve

// A chart: a column of the steps, a number of the evaluations, or both.
struct ChartRow {
  const char* title;
  std::string column, evaluation;
  bool smooth, percent, log;
};

// Those that runs have besides, of other columns and metrics, follow in the order of their names.
std::vector<ChartRow> chart_rows() {
  return {{"Loss", "loss", "eval_loss", true, false, true},
          {"Accuracy", "accuracy", "eval_accuracy", true, true, false},
          {"Learning rate", "lr", "", false, false, false},
          {"Gradient norm", "grad_norm", "", true, false, true},
          {"Samples per second", "samples/s", "", true, false, false},
          {"Tokens per second", "tokens/s", "", true, false, false},
          {"Utilization of the machine's peak", "utilization", "", true, true, false},
          {"Loss scale", "loss_scale", "", false, false, true}};
}

const std::set<std::string> kNoChart = {"step", "epoch", "ms", "samples", "tokens", "train_loss"};

// A column of the steps, with those that are computed.
Series column_of(const RunFiles& run, const std::string& name) {
  const std::vector<double>* steps = run.steps.column("step");
  if (!steps) return {};
  if (const std::vector<double>* values = run.steps.column(name)) return {*steps, *values};
  Series series;
  if (name != "samples/s" && name != "tokens/s") return series;
  const auto *counts = run.steps.column(name.substr(0, name.size() - 2)), *times = run.steps.column("ms");
  if (!counts || !times) return series;
  series.x = *steps;
  for (size_t i = 0; i < steps->size(); ++i) {
    const double rate = 1e3 * (*counts)[i] / (*times)[i];
    series.y.push_back(std::isfinite(rate) ? rate : std::nan(""));
  }
  return series;
}

bool has_numbers(const Series& series) {
  return std::any_of(series.y.begin(), series.y.end(), [](double y) { return !std::isnan(y); });
}

// [1,2.5,null]: seven digits are enough to look at.
void append_numbers(const std::vector<double>& values, std::string* text) {
  *text += "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) *text += ",";
    if (!std::isfinite(values[i])) {
      *text += "null";
      continue;
    }
    char number[40];
    const bool whole = values[i] == std::floor(values[i]) && std::abs(values[i]) < 1e15;
    const auto end = whole
                         ? std::to_chars(number, number + sizeof number, static_cast<int64_t>(values[i])).ptr
                         : std::to_chars(number, number + sizeof number, values[i], std::chars_format::general, 7).ptr;
    text->append(number, end);
  }
  *text += "]";
}

// As JSON inside of a script element, which "</script>" or "<!--" would end or confuse.
std::string script_text(const std::string& text) {
  std::string json = ordered_json(text).dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
  std::string safe;
  for (char c : json) safe += c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : c == '&' ? "\\u0026" : std::string(1, c);
  return safe;
}

class ChartData {
 public:
  explicit ChartData(const std::vector<RunFiles>& runs) : runs_(runs) {
    text_ = "{\"runs\":[";
    for (const RunFiles& run : runs) {
      if (&run != &runs.front()) text_ += ",";
      const Series time = thinned(elapsed(run), 400);
      text_ += concat("{\"name\":", script_text(run.name), ",\"time\":{\"x\":");
      append_numbers(time.x, &text_);
      text_ += ",\"y\":";
      append_numbers(time.y, &text_);
      text_ += "}}";
    }
    text_ += "],\"charts\":[";
    for (const ChartRow& row : chart_rows()) add(row.title, row);
    add_others();
    text_ += "]}";
  }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& title, const ChartRow& row) {
    std::string lines;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const bool one = runs_.size() == 1;
      const std::string of = one ? "" : runs_[i].name;
      const Series values = row.column.empty() ? Series() : column_of(runs_[i], row.column);
      const bool smooth = row.smooth && values.size() >= 100;
      if (has_numbers(values)) {
        const bool faint = smooth && one;  // the curves of several runs would hide each other
        if (!smooth || faint)
          append_line(i, one ? 0 : i, of, one ? "training" : "", smooth ? "raw" : "mean", values, &lines);
        if (smooth)
          append_line(i, one ? 0 : i, of, one ? "training" : "", "mean", smoothed(values, values.size() / 50), &lines);
      }
      const auto evaluated = runs_[i].evaluations.find(row.evaluation);
      if (evaluated != runs_[i].evaluations.end() && has_numbers(evaluated->second)) {
        append_line(i, one ? 1 : i, of, one ? "evaluation" : ", evaluation", "eval", evaluated->second, &lines);
      }
    }
    if (lines.empty()) return;
    if (text_.back() != '[') text_ += ",";
    text_ += concat("{\"title\":", script_text(title), ",\"percent\":", row.percent ? "true" : "false",
                    ",\"log\":", row.log ? "true" : "false", ",\"lines\":[", lines, "]}");
  }

  static void append_line(size_t run, size_t colour, const std::string& of, const std::string& what, const char* kind,
                          const Series& series, std::string* lines) {
    const Series thin = thinned(series, kMostPoints);
    *lines += concat(lines->empty() ? "" : ",", "{\"run\":", run, ",\"colour\":", colour,
                     ",\"name\":", script_text(of + what), ",\"kind\":\"", kind, "\",\"x\":");
    append_numbers(thin.x, lines);
    *lines += ",\"y\":";
    append_numbers(thin.y, lines);
    *lines += "}";
  }

  void add_others() {
    std::set<std::string> columns, evaluations, known = kNoChart;
    for (const ChartRow& row : chart_rows()) known.insert({row.column, row.evaluation});
    for (const RunFiles& run : runs_) {
      for (const std::string& name : run.steps.names()) {
        if (!known.count(name)) columns.insert(name);
      }
      for (const auto& [name, series] : run.evaluations) {
        if (!known.count(name)) evaluations.insert(name);
      }
    }
    constexpr size_t kMostCharts = 24;
    for (const std::string& name : columns) {
      evaluations.erase("eval_" + name);
      if (known.size() < kMostCharts) add(name, {"", name, "eval_" + name, true, is_fraction(name), false});
      known.insert(name);
    }
    for (const std::string& name : evaluations) {
      if (known.size() < kMostCharts)
        add(name, {"", "", name, false, is_fraction(name.substr(name.find('_') + 1)), false});
      known.insert(name);
    }
  }

  const std::vector<RunFiles>& runs_;
  std::string text_;
};

std::string legend(const std::vector<RunFiles>& runs) {
  std::string text = "<div class=\"legend\">";
  for (size_t i = 0; i < runs.size() && runs.size() > 1; ++i) {
    text += concat("<span class=\"key\"><i style=\"color:var(--c", i % 8, ")\"></i>", escaped(runs[i].name), "</span>");
  }
  return text + "</div>";
}

}  // namespace

std::string report_page(const std::vector<RunFiles>& runs) {
  const std::string title = page_title(runs);
  std::string page = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\" />\n<title>",
      escaped(title), "</title>\n<style>\n", kStyle, "</style>\n</head>\n<body>\n<main>\n<h1>", escaped(title),
      "</h1>\n");
  page += summary(runs);
  page += concat("<div class=\"bar\">", legend(runs),
                 "<button id=\"axis\" hidden=\"hidden\" aria-pressed=\"false\">by time</button></div>\n"
                 "<div class=\"charts\" id=\"charts\"></div>\n<svg id=\"space\" hidden=\"hidden\"></svg>\n"
                 "<noscript><p class=\"note\">The charts need JavaScript; the tables do not.</p></noscript>\n");
  page += tables(runs);
  page += concat("<footer>onnx-train report", runs.size() == 1 ? "" : " of several runs",
                 ". Curves of many steps show the lowest and the highest value of each part of them, faint, and a mean "
                 "over a fiftieth of the steps.</footer>\n</main>\n<script type=\"application/json\" id=\"data\">",
                 ChartData(runs).text(), "</script>\n<script>\n", kScript, "</script>\n</body>\n</html>\n");
  return page;
}

void write_report(const std::vector<std::string>& folders, const std::string& path) {
  std::vector<RunFiles> runs;
  for (const std::string& folder : folders) runs.push_back(read_run(folder));
  write_file(path, report_page(runs));
}

}  // namespace onnx_train
