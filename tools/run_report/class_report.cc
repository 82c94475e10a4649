#include "tools/run_report/class_report.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/runs/metrics_log.h"
#include "runtime/support/report_text.h"
#include "tools/report/class_tables.h"
#include "tools/run_report/report_tables.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;
using Numbers = std::vector<double>;

// The numbers of a list, with NaN for what is none; empty for what is no list, and for a list of lists.
Numbers numbers_of(const ordered_json& list) {
  Numbers numbers;
  if (!list.is_array()) return numbers;
  for (const auto& item : list) {
    if (item.is_array()) return {};
    numbers.push_back(item.is_number() ? item.get<double>() : std::nan(""));
  }
  return numbers;
}

// The rows of a square matrix; empty for all else.
std::vector<Numbers> matrix_of(const ordered_json& list) {
  std::vector<Numbers> rows;
  if (!list.is_array()) return rows;
  for (const auto& item : list) {
    rows.push_back(numbers_of(item));
    if (rows.back().size() != list.size()) return {};
  }
  return rows;
}

std::string number_cell(double value, const std::string& style = "") {
  const bool is_count = value == std::floor(value) && std::abs(value) < 1e15;
  const std::string text = std::isnan(value) ? "" : is_count ? format_exact(value) : format_number(value);
  return concat("<td class=\"number\"", style, ">", text, "</td>");
}

std::string table_of(const std::string& heading, const std::string& head, const std::string& rows) {
  return concat("<h2>", escaped(heading), "</h2>\n<div class=\"wide\"><table><thead><tr>", head, "</tr></thead><tbody>",
                rows, "</tbody></table></div>\n");
}

std::string head_cell(const std::string& text, bool number) {
  return concat("<th", number ? " class=\"number\"" : "", ">", escaped(text), "</th>");
}

class ClassReport {
 public:
  explicit ClassReport(const ordered_json& best) {
    if (best.contains("classes") && best["classes"].is_array()) {
      for (const auto& name : best["classes"]) names_.push_back(text_of(name));
    }
    if (best.contains("step") && best["step"].is_number()) when_ = concat(", step ", text_of(best["step"]));
    if (!best.contains("tables") || !best["tables"].is_object()) return;
    for (const auto& [name, table] : best["tables"].items()) {
      if (Numbers column = numbers_of(table); !column.empty()) {
        columns_.emplace_back(title_of_table(name), std::move(column));
      } else if (auto matrix = matrix_of(table); !matrix.empty()) {
        matrices_.emplace_back(name, std::move(matrix));
      }
    }
  }

  std::string html() const {
    std::string text = per_class();
    for (const auto& [name, matrix] : matrices_) text += confusion(name, matrix);
    return text;
  }

 private:
  std::string name_of(size_t c) const { return c < names_.size() ? names_[c] : std::to_string(c); }

  std::string per_class() const {
    constexpr size_t kMost = 200;
    size_t classes = 0;
    for (const auto& [name, column] : columns_) classes = std::max(classes, column.size());
    if (classes == 0) return "";
    std::string head = head_cell("class", false), rows;
    for (const auto& [name, column] : columns_) head += head_cell(name, true);
    for (size_t c = 0; c < std::min(classes, kMost); ++c) {
      rows += concat("<tr><th>", escaped(name_of(c)), "</th>");
      for (const auto& [name, column] : columns_) rows += number_cell(c < column.size() ? column[c] : std::nan(""));
      rows += "</tr>";
    }
    const std::string which = classes > kMost ? concat("the first ", kMost, " of ", classes) : "the best evaluation";
    return table_of(concat("Classes (", which, when_, ")"), head, rows);
  }

  // The darker a cell, the larger its part of the row's labels.
  std::string confusion(const std::string& name, const std::vector<Numbers>& matrix) const {
    constexpr size_t kMost = 60;
    std::string title = name;
    std::replace(title.begin(), title.end(), '_', ' ');
    if (!title.empty()) title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    if (matrix.size() > kMost) {
      return concat("<h2>", escaped(title), "</h2><p>", matrix.size(), " classes: see ", kBestEvaluation, "</p>\n");
    }
    std::string head = head_cell("label \\ predicted", false), rows;
    for (size_t c = 0; c < matrix.size(); ++c) head += head_cell(name_of(c), true);
    for (size_t c = 0; c < matrix.size(); ++c) {
      double sum = 0;
      for (const double value : matrix[c]) sum += std::isnan(value) ? 0 : value;
      rows += concat("<tr><th>", escaped(name_of(c)), "</th>");
      for (size_t k = 0; k < matrix.size(); ++k) {
        const double share = sum > 0 ? matrix[c][k] / sum : 0;
        const std::string colour = c == k ? "var(--c2)" : "var(--c4)";
        const auto percent = static_cast<int>(std::lround(60 * std::clamp(std::isnan(share) ? 0 : share, 0.0, 1.0)));
        rows += number_cell(matrix[c][k],
                            concat(" style=\"background:color-mix(in srgb,", colour, " ", percent, "%,transparent)\""));
      }
      rows += "</tr>";
    }
    return table_of(concat(title, " (the best evaluation", when_, ")"), head, rows);
  }

  std::vector<std::string> names_;
  std::string when_;
  std::vector<std::pair<std::string, Numbers>> columns_;
  std::vector<std::pair<std::string, std::vector<Numbers>>> matrices_;
};

}  // namespace

std::string class_tables(const RunFiles& run) { return run.best.is_object() ? ClassReport(run.best).html() : ""; }

}  // namespace onnx_train
