#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/readers.h"

namespace onnx_train {
namespace {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<double> values;  // row by row
  std::vector<bool> integral;  // by column: all values are integers
  int64_t rows = 0;
};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t at = 0;;) {
    const size_t comma = line.find(',', at);
    fields.push_back(trim(line.substr(at, comma == std::string_view::npos ? comma : comma - at)));
    if (comma == std::string_view::npos) return fields;
    at = comma + 1;
  }
}

double parse_number(std::string_view field, const std::string& path, int64_t line, const std::string& column) {
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || end != field.data() + field.size()) {
    fail_as(ErrorCode::kFile, path, ", line ", line, ", column '", column, "': '", field.substr(0, 40),
            "' is not a number");
  }
  return value;
}

CsvTable parse(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the byte order mark that spreadsheets write
  CsvTable table;
  for (int64_t line_number = 1; !text.empty(); ++line_number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (trim(line).empty()) continue;
    const auto fields = split(line);
    if (table.columns.empty()) {
      table.columns.assign(fields.begin(), fields.end());
      table.integral.assign(fields.size(), true);
      continue;
    }
    if (fields.size() != table.columns.size()) {
      fail_as(ErrorCode::kFile, path, ", line ", line_number, ": ", fields.size(), " fields, the header has ",
              table.columns.size());
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      const double value = parse_number(fields[i], path, line_number, table.columns[i]);
      if (value != std::floor(value) || std::abs(value) > 0x1p53) table.integral[i] = false;
      table.values.push_back(value);
    }
    ++table.rows;
  }
  if (table.columns.empty()) fail_as(ErrorCode::kFile, path, " is empty; the first line names the columns");
  return table;
}

using Columns = std::vector<size_t>;

// x0, x1, ... or x_0, x_1, ... as far as they go.
Columns numbered_columns(const std::map<std::string, size_t>& index, const std::string& input) {
  for (const char* separator : {"", "_"}) {
    Columns columns;
    for (;;) {
      const auto found = index.find(concat(input, separator, columns.size()));
      if (found == index.end()) break;
      columns.push_back(found->second);
    }
    if (!columns.empty()) return columns;
  }
  return {};
}

// The columns of each input, by the rule of source.h.
std::map<std::string, Columns> assign_columns(const CsvTable& table, const std::vector<InputSpec>& inputs) {
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < table.columns.size(); ++i) index.emplace(table.columns[i], i);
  std::map<std::string, Columns> assigned;
  std::set<size_t> taken;
  for (const InputSpec& spec : inputs) {
    const auto exact = index.find(spec.name);
    Columns columns = exact != index.end() ? Columns{exact->second} : numbered_columns(index, spec.name);
    if (columns.empty()) continue;
    taken.insert(columns.begin(), columns.end());
    assigned.emplace(spec.name, std::move(columns));
  }
  const std::string first = first_input(inputs);
  if (first.empty() || assigned.count(first)) return assigned;
  Columns rest;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (!taken.count(i)) rest.push_back(i);
  }
  if (!rest.empty()) assigned.emplace(first, std::move(rest));
  return assigned;
}

// One column as [rows], several as [rows, columns]; int64 when all are integers, else double.
Tensor make_array(const CsvTable& table, const Columns& columns) {
  bool integral = true;
  for (size_t column : columns) integral = integral && table.integral[column];
  Shape shape = {table.rows};
  if (columns.size() > 1) shape.push_back(static_cast<int64_t>(columns.size()));
  Tensor array(integral ? DType::kInt64 : DType::kDouble, shape);
  int64_t n = 0;
  for (size_t row = 0; row < static_cast<size_t>(table.rows); ++row) {
    for (size_t column : columns) {
      const double value = table.values[row * table.columns.size() + column];
      if (integral) {
        array.data<int64_t>()[n++] = static_cast<int64_t>(value);
      } else {
        array.data<double>()[n++] = value;
      }
    }
  }
  return array;
}

}  // namespace

std::unique_ptr<DataSource> open_csv(const std::string& path, const std::vector<InputSpec>& inputs) {
  const CsvTable table = parse(path);
  TensorMap arrays;
  for (const auto& [name, columns] : assign_columns(table, inputs)) arrays[name] = make_array(table, columns);
  return make_source(path, std::move(arrays));
}

}  // namespace onnx_train
