#include "tools/report/class_tables.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

constexpr int64_t kMostRows = 50, kMostColumns = 12;

std::string class_name(const std::vector<std::string>& classes, int64_t number) {
  const auto i = static_cast<size_t>(number);
  return i < classes.size() ? classes[i] : std::to_string(number);
}

// Counts as they are, all else with four digits.
std::string cell_text(double value) {
  const bool is_count = value == std::floor(value) && std::abs(value) < 1e15;
  return std::isnan(value) ? "-" : is_count ? std::to_string(static_cast<int64_t>(value)) : format_number(value);
}

std::string matrix_text(const Tensor& matrix, const std::vector<std::string>& classes, size_t width) {
  const int64_t n = matrix.shape()[0];
  TextTable table("l" + std::string(static_cast<size_t>(n), 'r'));
  std::vector<std::string> head = {"label \\ predicted"};
  for (int64_t c = 0; c < n; ++c) head.push_back(class_name(classes, c));
  table.add(head);
  for (int64_t c = 0; c < n; ++c) {
    std::vector<std::string> row = {class_name(classes, c)};
    for (int64_t k = 0; k < n; ++k) row.push_back(cell_text(matrix.at(c * n + k)));
    table.add(row);
  }
  return table.text(0, width);
}

}  // namespace

std::string title_of_table(const std::string& name) {
  const std::string suffix = "_per_class";
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

std::string class_tables_text(const MetricTables& tables, const std::vector<std::string>& classes, size_t width) {
  std::string text;
  int64_t rows = 0;
  for (const auto& [name, values] : tables) {
    if (values.shape().size() == 1) rows = std::max(rows, values.size());
  }
  std::vector<std::string> head = {"class"};
  std::vector<const Tensor*> columns;
  for (const auto& [name, values] : tables) {
    if (values.shape().size() != 1 || values.size() != rows) continue;
    head.push_back(title_of_table(name));
    columns.push_back(&values);
  }
  if (!columns.empty()) {
    TextTable table("l" + std::string(columns.size(), 'r'));
    table.add(head);
    for (int64_t c = 0; c < std::min(rows, kMostRows); ++c) {
      std::vector<std::string> row = {class_name(classes, c)};
      for (const Tensor* values : columns) row.push_back(cell_text(values->at(c)));
      table.add(row);
    }
    text += "\n" + table.text(0, width);
    if (rows > kMostRows) text += concat("and ", rows - kMostRows, " more classes: --json has all\n");
  }
  for (const auto& [name, values] : tables) {
    const Shape& shape = values.shape();
    if (shape.size() != 2 || shape[0] != shape[1]) continue;
    text += shape[0] <= kMostColumns ? concat("\n", name, "\n", matrix_text(values, classes, width))
                                     : concat("\n", name, ": ", shape[0], " classes, in --json\n");
  }
  return text;
}

}  // namespace onnx_train
