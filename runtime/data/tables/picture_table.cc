#include "runtime/data/tables/picture_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

std::optional<size_t> column_of(const DataTable& table, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), name);
    if (found != table.columns.end()) return static_cast<size_t>(found - table.columns.begin());
  }
  return std::nullopt;
}

const std::vector<std::string> kPathColumns = {"path", "file", "filename"};

class PictureTableReader {
 public:
  PictureTableReader(const DataTable& table, const InputSpec* target, const DataOptions& options,
                     const std::vector<std::string>& known)
      : table_(table),
        target_(target),
        options_(options),
        known_(known),
        path_(*column_of(table, kPathColumns)),
        files_(*one_picture(table.path)) {}

  PictureTable read() {
    read_paths();
    const std::vector<size_t> named = named_columns();
    std::vector<std::string> class_columns = kLabelColumns;
    if (target_) class_columns.insert(class_columns.begin(), target_->name);
    const auto one = named.size() == 1 ? std::optional(named[0])
                     : named.empty()   ? column_of(table_, class_columns)
                                       : std::nullopt;
    if (one && !options_.label_separator.empty()) {
      read_separated(*one);
    } else if (one && (named.empty() || !holds_numbers_to_predict(*one))) {
      read_classes(*one);
    } else if (!named.empty()) {
      read_numbers(named);
    } else if (const std::vector<size_t> rest = other_columns(); hold_zeros_and_ones(rest)) {
      read_numbers(rest);
    } else if (!rest.empty()) {
      files_.unlabelled = concat("no column is called class, label or labels, and ", no_zero_or_one(rest),
                                 "; --map COLUMN=labels names the column of the classes, --columns labels=A,B several");
    }
    return {std::make_shared<const PictureFiles>(std::move(files_)), columns_};
  }

 private:
  void read_paths() {
    files_.files.clear();
    bool is_absolute = false;
    for (size_t row = 0; row < table_.rows(); ++row) {
      const std::string_view path = table_.field(row, path_);
      if (path.empty()) fail_as(ErrorCode::kFile, table_.path, ", line ", table_.lines[row], " names no file");
      is_absolute = is_absolute || path.starts_with('/');
      files_.files.emplace_back(path);
    }
    if (!is_absolute) return;
    for (std::string& name : files_.files) name = (std::filesystem::path(files_.folder) / name).string();
    files_.folder.clear();
  }

  // Those that --columns names for the target, or that the model knows.
  std::vector<size_t> named_columns() const {
    std::vector<std::string> names;
    if (target_) {
      names = known_;
      for (const NamedList& list : named_lists(options_.columns, "--columns")) {
        if (list.name == target_->name) names = list.values;
      }
    }
    std::vector<size_t> columns;
    for (const std::string& name : names) {
      const auto column = column_of(table_, {name});
      if (!column) {
        fail_as(ErrorCode::kData, table_.path, " has no column '", name, "' for '", target_->name, "'",
                did_you_mean(name, table_.columns));
      }
      columns.push_back(*column);
    }
    return columns;
  }

  std::vector<size_t> other_columns() const {
    std::vector<size_t> columns;
    for (size_t i = 0; i < table_.columns.size(); ++i) {
      if (i != path_) columns.push_back(i);
    }
    return columns;
  }
  bool hold_zeros_and_ones(const std::vector<size_t>& columns) const {
    if (columns.empty()) return false;
    return std::all_of(columns.begin(), columns.end(), [&](size_t column) {
      for (size_t row = 0; row < table_.rows(); ++row) {
        const auto number = number_in(table_.field(row, column));
        if (!number || (*number != 0 && *number != 1)) return false;
      }
      return true;
    });
  }
  // The first field of the columns that is neither.
  std::string no_zero_or_one(const std::vector<size_t>& columns) const {
    for (const size_t column : columns) {
      for (size_t row = 0; row < table_.rows(); ++row) {
        const std::string_view field = table_.field(row, column);
        const auto number = number_in(field);
        if (number && (*number == 0 || *number == 1)) continue;
        return concat("line ", table_.lines[row], ", column ", table_.columns[column], ", holds ",
                      field.empty() ? std::string_view("nothing") : field.substr(0, 40), ", neither 0 nor 1");
      }
    }
    return "there are no lines";
  }
  // Of one column: numbers for a target that takes floats, or that are not all whole.
  bool holds_numbers_to_predict(size_t column) const {
    bool are_whole = true;
    for (size_t row = 0; row < table_.rows(); ++row) {
      const auto number = number_in(table_.field(row, column));
      if (!number) return false;
      are_whole = are_whole && *number == std::floor(*number);
    }
    return !are_whole || is_float(target_->type.dtype);
  }

  void read_numbers(const std::vector<size_t>& columns) {
    bool are_labels = hold_zeros_and_ones(columns);
    for (const size_t column : columns) columns_.push_back(table_.columns[column]);
    for (size_t row = 0; row < table_.rows(); ++row) {
      std::vector<float>& numbers = files_.targets.emplace_back();
      for (const size_t column : columns) {
        const std::string_view field = table_.field(row, column);
        const auto number = number_in(field);
        if (!number || !std::isfinite(*number)) {
          fail_as(ErrorCode::kFile, table_.path, ", line ", table_.lines[row], ", column '", table_.columns[column],
                  "': '", field.substr(0, 40), "' is not a number");
        }
        numbers.push_back(static_cast<float>(*number));
      }
    }
    if (are_labels && columns.size() > 1) files_.classes = columns_;
    files_.notes.push_back(concat(table_.path, ": ", are_labels ? "the columns of zeros and ones are classes, " : "",
                                  "each picture has ", columns.size(), columns.size() == 1 ? " number" : " numbers"));
  }

  // Lines without a class are of use to predict alone.
  bool lacks_classes(size_t column) const {
    constexpr std::string_view kSpace = " \t";
    for (size_t row = 0; row < table_.rows(); ++row) {
      if (table_.field(row, column).find_first_not_of(kSpace) != std::string_view::npos) continue;
      if (!target_) return true;
      fail_as(ErrorCode::kFile, table_.path, ", line ", table_.lines[row], ", column '", table_.columns[column],
              "' is blank: write the picture's class, or take the line out");
    }
    return false;
  }

  void read_classes(size_t column) {
    if (lacks_classes(column)) return;
    for (size_t row = 0; row < table_.rows(); ++row) {
      const std::string_view field = table_.field(row, column);
      int64_t label = 0;
      const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), label);
      if (error != std::errc() || end != field.data() + field.size()) break;
      files_.labels.push_back(label);
      files_.numbers.emplace(label, field);
    }
    if (files_.labels.size() == table_.rows()) return;
    files_.numbers.clear();
    std::set<std::string_view> found;
    for (size_t row = 0; row < table_.rows(); ++row) found.insert(table_.field(row, column));
    set_classes(found);
    files_.labels.clear();
    for (size_t row = 0; row < table_.rows(); ++row) {
      files_.labels.push_back(static_cast<int64_t>(place_of(table_.field(row, column))));
    }
  }

  // "cat;dog": a field without anything has no class.
  void read_separated(size_t column) {
    std::set<std::string_view> found;
    for (size_t row = 0; row < table_.rows(); ++row) {
      for (const std::string_view name : pieces(table_.field(row, column))) found.insert(name);
    }
    set_classes(found);
    for (size_t row = 0; row < table_.rows(); ++row) {
      std::vector<float>& numbers = files_.targets.emplace_back(files_.classes.size(), 0.f);
      for (const std::string_view name : pieces(table_.field(row, column))) numbers[place_of(name)] = 1;
    }
  }
  std::vector<std::string_view> pieces(std::string_view field) const {
    constexpr std::string_view kSpace = " \t";
    std::vector<std::string_view> pieces;
    while (!field.empty()) {
      std::string_view piece = field.substr(0, field.find(options_.label_separator));
      field.remove_prefix(std::min(piece.size() + options_.label_separator.size(), field.size()));
      const size_t first = piece.find_first_not_of(kSpace);
      if (first == std::string_view::npos) continue;
      pieces.push_back(piece.substr(first, piece.find_last_not_of(kSpace) + 1 - first));
    }
    return pieces;
  }

  void set_classes(const std::set<std::string_view>& names) { files_.classes.assign(names.begin(), names.end()); }
  size_t place_of(std::string_view name) const {
    return static_cast<size_t>(std::lower_bound(files_.classes.begin(), files_.classes.end(), name) -
                               files_.classes.begin());
  }

  const DataTable& table_;
  const InputSpec* target_;
  const DataOptions& options_;
  const std::vector<std::string>& known_;
  const size_t path_;
  PictureFiles files_;
  std::vector<std::string> columns_;
};

}  // namespace

bool is_picture_table(const DataTable& table) { return column_of(table, kPathColumns).has_value(); }

void rename_columns(const DataOptions& options, const InputSpec* target, DataTable* table) {
  for (const NamedList& pair : named_lists(options.map, "--map")) {
    if (pair.values[0] != kPathColumns[0] && !(target && pair.values[0] == target->name)) continue;
    const auto column = column_of(*table, {pair.name});
    if (!column) {
      fail_as(ErrorCode::kData, table->path, " has no column '", pair.name, "', which --map names",
              did_you_mean(pair.name, table->columns));
    }
    table->columns[*column] = pair.values[0];
  }
}

PictureTable read_picture_table(const DataTable& table, const InputSpec* target, const DataOptions& options,
                                const std::vector<std::string>& known) {
  return PictureTableReader(table, target, options, known).read();
}

}  // namespace onnx_train
