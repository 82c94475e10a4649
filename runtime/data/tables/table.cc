#include "runtime/data/tables/table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <locale>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/files/readers.h"

namespace onnx_train {
namespace {

constexpr std::array<std::string_view, 10> kMissing = {"",    "NA",   "N/A",  "n/a",  "NaN",
                                                       "nan", "NULL", "null", "None", "<NA>"};

[[noreturn]] void fail_at(const DataTable& table, size_t row, const std::string& column, const std::string& why) {
  fail_as(ErrorCode::kTableField, table.path, ", line ", table.lines[row], ", column '", column, "': ", why);
}

// One column that an input reads.
struct ColumnValues {
  std::string name;
  bool is_label = false;
  std::vector<double> numbers;          // NaN where they are missing
  std::vector<size_t> missing;          // rows
  std::vector<std::string> categories;  // of texts
};

// A name may hold bytes that are no UTF-8.
constexpr auto kReplace = nlohmann::json::error_handler_t::replace;

std::string listed(const std::vector<std::string>& names) {
  return first_few(std::span<const std::string>(names), 8, [](const std::string& name) { return name; });
}

// Metadata of the model, which a file may have damaged.
nlohmann::json known_json(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return {};
  auto json = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? nlohmann::json() : json;
}

std::optional<std::vector<std::string>> names_in(const nlohmann::json& json) {
  const bool is_list =
      json.is_array() && std::all_of(json.begin(), json.end(), [](const auto& x) { return x.is_string(); });
  return is_list ? std::optional(json.get<std::vector<std::string>>()) : std::nullopt;
}

class TableReader {
 public:
  TableReader(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options)
      : table_(table), inputs_(inputs), options_(options), columns_(nlohmann::ordered_json::object()) {
    known_columns_ = known_json(options.metadata, kTableColumns);
    known_classes_ = known_json(options.metadata, kClassNames);
  }

  DataArrays read(std::vector<size_t>* left) {
    const AssignedColumns assigned = assign_columns(table_, inputs_, options_, trained_columns(options_.metadata));
    std::map<size_t, ColumnValues> columns;
    for (const InputSpec& spec : inputs_) {
      const auto found = assigned.find(spec.name);
      if (found == assigned.end()) continue;
      note_labels(spec, found->second);
      for (const size_t column : found->second) {
        if (columns.count(column) == 0) columns.emplace(column, read_column(column, spec));
      }
    }
    const std::vector<size_t> rows = rows_without_missing(columns);
    for (auto& [index, column] : columns) fill(&column);
    if (left) *left = rows;
    for (const auto& [name, indices] : assigned) result_.arrays[name] = make_array(columns, indices, rows);
    if (!columns_.empty()) result_.metadata[kTableColumns] = columns_.dump(-1, ' ', false, kReplace);
    result_.metadata[kTableInputs] = columns_to_json(names_of(assigned));
    return std::move(result_);
  }

 private:
  KnownColumns names_of(const AssignedColumns& assigned) const {
    KnownColumns names;
    for (const auto& [input, columns] : assigned) {
      for (const size_t column : columns) names[input].push_back(table_.columns[column]);
    }
    return names;
  }
  // Notes which column the labels come from, unless an option names it.
  void note_labels(const InputSpec& spec, const std::vector<size_t>& columns) {
    const std::string& name = table_.columns[columns[0]];
    const bool is_named = spec.name == name || !options_.map.empty() || !options_.columns.empty();
    if (spec.from_loss && !is_named && std::ranges::count(kLabelColumns, name) > 0)
      result_.notes.push_back(concat(table_.path, ": column '", name, "' is taken for '", spec.name, "'"));
  }
  nlohmann::json known_of(const ColumnValues& column) const {
    if (column.is_label) return known_classes_;
    const bool is_there = known_columns_.is_object() && known_columns_.contains(column.name);
    return is_there ? known_columns_.at(column.name) : nlohmann::json();
  }

  ColumnValues read_column(size_t index, const InputSpec& spec) {
    ColumnValues column{table_.columns[index], spec.from_loss, {}, {}, {}};
    const size_t rows = table_.rows();
    column.numbers.assign(rows, std::numeric_limits<double>::quiet_NaN());
    for (size_t row = 0; row < rows; ++row) {
      if (is_missing(table_.field(row, index))) column.missing.push_back(row);
    }
    size_t first = 0;  // that is not missing
    while (first < rows && is_missing(table_.field(first, index))) ++first;
    const bool was_text = names_in(known_of(column)).has_value();
    // Of a loss over numbers, texts are yes and no.
    const auto may_be_text = [&] {
      return !spec.from_loss || is_integer(spec.type.dtype) || values_of(index, 3).size() <= 2;
    };
    const bool is_text =
        first < rows && (!number_in(table_.field(first, index)) || (was_text && !column.is_label)) && may_be_text();
    if (is_text) {
      read_texts(index, &column);
      return column;
    }
    for (size_t row = first; row < rows; ++row) {
      const std::string_view field = table_.field(row, index);
      if (is_missing(field)) continue;
      const auto number = number_in(field);
      if (!number) {
        fail_at(
            table_, row, column.name,
            concat("'", field.substr(0, 40), "' is not a number", row == first ? "" : ", as the values before are"));
      }
      column.numbers[row] = *number;
    }
    return column;
  }

  // The different values of a column, at most `most` of them.
  std::set<std::string_view> values_of(size_t index, size_t most) const {
    std::set<std::string_view> found;
    for (size_t row = 0; row < table_.rows() && found.size() < most; ++row) {
      if (const std::string_view field = table_.field(row, index); !is_missing(field)) found.insert(field);
    }
    return found;
  }

  void read_texts(size_t index, ColumnValues* column) {
    const std::set<std::string_view> found = values_of(index, table_.rows());
    const auto known = names_in(known_of(*column));
    const bool trains = options_.role.value_or(DataRole::kTrain) == DataRole::kTrain;
    std::set<std::string_view> known_set;
    if (known) known_set.insert(known->begin(), known->end());
    if (known && (!trains || std::includes(known_set.begin(), known_set.end(), found.begin(), found.end()))) {
      column->categories = *known;
    } else {
      column->categories.assign(found.begin(), found.end());
      if (known) {
        result_.notes.push_back(concat(table_.path, ": '", column->name, "' has other values than the model knows, ",
                                       listed(*known), ", and is numbered anew"));
      }
    }
    std::map<std::string_view, double> places;
    for (const std::string& category : column->categories) places.emplace(category, static_cast<double>(places.size()));
    for (size_t row = 0; row < table_.rows(); ++row) {
      const std::string_view field = table_.field(row, index);
      if (is_missing(field)) continue;
      const auto place = places.find(field);
      if (place == places.end()) {
        fail_at(table_, row, column->name,
                concat("'", field.substr(0, 40),
                       "' is none of the values that the model knows: ", listed(column->categories)));
      }
      column->numbers[row] = place->second;
    }
    const std::string what = column->is_label ? "classes" : "categories";
    result_.notes.push_back(concat(table_.path, ": '", column->name, "' holds texts, read as ",
                                   column->categories.size(), " ", what,
                                   " in sorted order: ", listed(column->categories)));
    const nlohmann::json names = column->categories;
    if (column->is_label) {
      result_.metadata[kClassNames] = names.dump(-1, ' ', false, kReplace);
    } else {
      columns_[column->name] = nlohmann::json::parse(names.dump(-1, ' ', false, kReplace));
    }
  }

  // All rows, or with --missing drop those in which nothing is missing.
  std::vector<size_t> rows_without_missing(const std::map<size_t, ColumnValues>& columns) {
    std::vector<bool> is_left_out(table_.rows());
    if (options_.missing == "drop") {
      for (const auto& [index, column] : columns) {
        for (const size_t row : column.missing) is_left_out[row] = true;
      }
    }
    std::vector<size_t> rows;
    for (size_t row = 0; row < table_.rows(); ++row) {
      if (!is_left_out[row]) rows.push_back(row);
    }
    if (rows.size() < table_.rows()) {
      result_.notes.push_back(concat(table_.path, ": ", table_.rows() - rows.size(), " of ", table_.rows(),
                                     " rows have missing values and are left out"));
    }
    return rows;
  }

  // Replaces missing numbers, as --missing or the model says.
  void fill(ColumnValues* column) {
    if (options_.missing == "drop") return;
    const nlohmann::json known = known_of(*column);
    const bool is_number = column->categories.empty() && !column->is_label;
    std::optional<double> value;
    if (is_number && options_.missing == "zero") {
      value = 0;
    } else if (is_number && known.is_number() && options_.role == DataRole::kEvaluate) {
      value = known.get<double>();
    } else if (is_number && options_.missing == "mean") {
      double sum = 0;
      for (const double number : column->numbers) sum += number == number ? number : 0;
      const size_t count = column->numbers.size() - column->missing.size();
      if (count > 0) value = sum / static_cast<double>(count);
    } else if (is_number && known.is_number()) {
      value = known.get<double>();
    }
    if (value && std::isfinite(*value)) columns_[column->name] = *value;
    if (column->missing.empty()) return;
    if (!value) {
      const std::string way = options_.missing.empty() ? "--missing mean, zero or drop" : "--missing drop";
      fail_at(table_, column->missing[0], column->name,
              concat("the value is missing",
                     options_.missing.empty() ? ""
                     : is_number              ? ", as all are"
                                              : ", and has no mean or zero",
                     "; ", way, " says what to do"));
    }
    for (const size_t row : column->missing) column->numbers[row] = *value;
    result_.notes.push_back(concat(table_.path, ": ", column->missing.size(), " missing values of '", column->name,
                                   "' become ", number_text(*value)));
  }

  // One column as [rows], several as [rows, columns]; int64 when all are integers, else double.
  Tensor make_array(const std::map<size_t, ColumnValues>& columns, const std::vector<size_t>& indices,
                    const std::vector<size_t>& rows) const {
    bool integral = true;
    for (const size_t index : indices) {
      const std::vector<double>& numbers = columns.at(index).numbers;
      integral = integral && std::all_of(rows.begin(), rows.end(), [&](size_t row) { return is_whole(numbers[row]); });
    }
    Shape shape = {static_cast<int64_t>(rows.size())};
    if (indices.size() > 1) shape.push_back(static_cast<int64_t>(indices.size()));
    Tensor array(integral ? DType::kInt64 : DType::kDouble, shape);
    int64_t n = 0;
    for (const size_t row : rows) {
      for (const size_t index : indices) {
        const double value = columns.at(index).numbers[row];
        if (integral) {
          array.data<int64_t>()[n++] = static_cast<int64_t>(value);
        } else {
          array.data<double>()[n++] = value;
        }
      }
    }
    return array;
  }

  const DataTable& table_;
  const std::vector<InputSpec>& inputs_;
  const ReadOptions& options_;
  nlohmann::json known_columns_, known_classes_;
  nlohmann::ordered_json columns_;
  DataArrays result_;
};

}  // namespace

bool is_missing(std::string_view field) { return std::find(kMissing.begin(), kMissing.end(), field) != kMissing.end(); }

std::optional<double> number_in(std::string_view field) {
  if (field == "true" || field == "True" || field == "TRUE") return 1;
  if (field == "false" || field == "False" || field == "FALSE") return 0;
  if (field.starts_with('+') && field.size() > 1 && field[1] != '-') field.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (end != field.data() + field.size()) return {};
  if (error == std::errc::result_out_of_range) {  // 1e400 is infinity, 1e-400 is 0; from_chars does not tell them apart
    std::istringstream text{std::string(field)};
    text.imbue(std::locale::classic());
    const bool fits = static_cast<bool>(text >> value);
    return fits ? value : std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return error == std::errc() ? std::optional<double>(value) : std::nullopt;
}

bool is_whole(double x) { return x == std::floor(x) && std::abs(x) <= 0x1p53; }

KnownColumns trained_columns(const std::map<std::string, std::string>& metadata) {
  KnownColumns inputs;
  const nlohmann::json json = known_json(metadata, kTableInputs);
  if (!json.is_object()) return inputs;
  for (const auto& [input, columns] : json.items()) {
    if (const auto names = names_in(columns)) inputs[input] = *names;
  }
  return inputs;
}

std::string columns_to_json(const KnownColumns& columns) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [input, names] : columns) json[input] = names;
  return json.dump(-1, ' ', false, kReplace);
}

DataArrays arrays_of(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                     std::vector<size_t>* rows) {
  return TableReader(table, inputs, options).read(rows);
}

}  // namespace onnx_train
