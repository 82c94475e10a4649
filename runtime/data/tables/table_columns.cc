// Which columns of a table go to which input.
#include <algorithm>
#include <set>
#include <span>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/files/readers.h"
#include "runtime/data/tables/table.h"

namespace onnx_train {
namespace {

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

// What a table says that is separated by something else than commas.
std::string of_separator(const DataTable& table) {
  if (table.columns.size() != 1) return "";
  for (const auto& [separator, name] : {std::pair(';', "semicolons"), {'\t', "tabs"}}) {
    if (table.columns[0].find(separator) != std::string::npos)
      return concat(": its fields are separated by ", name, ", and commas separate those of a .csv");
  }
  return "";
}

[[noreturn]] void fail_without(const DataTable& table, const char* option, const std::string& column) {
  const std::string why = of_separator(table);
  throw UsageError(concat(option, ": ", table.path, " has no column '", column, "'",
                          why.empty() ? did_you_mean(column, table.columns) : why),
                   ErrorCode::kTableColumn);
}

// The columns under the names that --map gives them.
std::map<std::string, size_t> index_of(const DataTable& table, const ReadOptions& options) {
  const std::vector<NamedList> map = named_lists(options.map, "--map");
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const auto renamed =
        std::find_if(map.begin(), map.end(), [&](const auto& pair) { return pair.name == table.columns[i]; });
    index.emplace(renamed == map.end() ? table.columns[i] : renamed->values[0], i);
  }
  for (const NamedList& pair : map) {
    if (std::count(table.columns.begin(), table.columns.end(), pair.name) > 0) continue;
    fail_without(table, "--map", pair.name);
  }
  return index;
}

AssignedColumns named_columns(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                              const std::map<std::string, size_t>& index) {
  std::vector<std::string> names;
  for (const InputSpec& spec : inputs) names.push_back(spec.name);
  AssignedColumns assigned;
  for (const NamedList& list : named_lists(options.columns, "--columns")) {
    if (std::count(names.begin(), names.end(), list.name) == 0) {
      throw UsageError(concat("--columns: the model has no input '", list.name, "'", did_you_mean(list.name, names)));
    }
    for (const std::string& column : list.values) {
      const auto found = index.find(column);
      if (found == index.end()) fail_without(table, "--columns", column);
      assigned[list.name].push_back(found->second);
    }
  }
  return assigned;
}

// The columns that the model was trained on, whatever --map calls them now; none where it knows of none, or where the
// input may be left out, as labels for a prediction may.
Columns known_columns(const DataTable& table, const InputSpec& input, const KnownColumns& known) {
  Columns columns;
  const auto names = known.find(input.name);
  if (names == known.end()) return columns;
  for (const std::string& name : names->second) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), name);
    if (found == table.columns.end()) {
      if (input.has_default) return {};
      fail_as(ErrorCode::kData, table.path, " has no column '", name, "', which the model's '", input.name,
              "' was trained on; --columns ", input.name, "=... says which columns it takes here");
    }
    columns.push_back(static_cast<size_t>(found - table.columns.begin()));
  }
  return columns;
}

// A column of labels that no input takes.
Columns label_column(const std::map<std::string, size_t>& index, const std::vector<InputSpec>& inputs) {
  for (const std::string& name : kLabelColumns) {
    const auto found = index.find(name);
    const auto has_name = [&](const InputSpec& spec) { return spec.name == name; };
    if (found != index.end() && std::ranges::none_of(inputs, has_name)) return {found->second};
  }
  return {};
}

// All that are left, for the model's first input.
void expect_all_fit(const DataTable& table, const InputSpec& input, const Columns& columns, bool lacks_target) {
  const std::optional<Shape> sizes = sizes_of_sample(input);
  if (!sizes || num_elements(*sizes) == std::ssize(columns)) return;
  if (const std::string why = of_separator(table); !why.empty()) fail_as(ErrorCode::kArrayMisfit, table.path, why);
  const std::string names = first_few(std::span<const size_t>(columns), 8, [&](size_t i) { return table.columns[i]; });
  fail_as(ErrorCode::kArrayMisfit, table.path, " has ", columns.size(), " columns for '", input.name, "' ",
          to_string(input.type), ", which takes ", num_elements(*sizes), ": ", names, "; --columns ", input.name,
          "=... says which", lacks_target ? ", --map COLUMN=labels which one is the loss's target" : "");
}

}  // namespace

std::optional<Shape> sizes_of_sample(const InputSpec& input) {
  if (!input.type.has_rank() || input.type.rank() == 0) return std::nullopt;
  Shape sizes;
  for (size_t axis = 1; axis < input.type.dims->size(); ++axis) {
    const Dim& dim = (*input.type.dims)[axis];
    if (!dim.known()) return std::nullopt;
    sizes.push_back(dim.value());
  }
  return sizes;
}

AssignedColumns assign_columns(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                               const KnownColumns& known) {
  const std::map<std::string, size_t> index = index_of(table, options);
  AssignedColumns assigned = named_columns(table, inputs, options, index);
  std::set<size_t> taken;
  for (const InputSpec& spec : inputs) {
    const auto exact = index.find(spec.name);
    Columns columns = assigned.count(spec.name) > 0 ? assigned[spec.name]
                      : exact != index.end()        ? Columns{exact->second}
                                                    : numbered_columns(index, spec.name);
    if (columns.empty()) columns = known_columns(table, spec, known);
    if (columns.empty() && spec.name == first_label(inputs)) columns = label_column(index, inputs);
    if (columns.empty()) continue;
    taken.insert(columns.begin(), columns.end());
    assigned[spec.name] = std::move(columns);
  }
  const std::string first = first_input(inputs);
  if (first.empty() || assigned.count(first)) return assigned;
  Columns rest;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (!taken.count(i)) rest.push_back(i);
  }
  if (rest.empty()) return assigned;
  const auto is_first = [&](const InputSpec& spec) { return spec.name == first; };
  const std::string label = first_label(inputs);
  expect_all_fit(table, *std::ranges::find_if(inputs, is_first), rest, !label.empty() && !assigned.contains(label));
  assigned.emplace(first, std::move(rest));
  return assigned;
}

}  // namespace onnx_train
