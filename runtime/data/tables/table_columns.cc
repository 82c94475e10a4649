// Which columns of a table go to which input.
#include <algorithm>
#include <set>

#include "onnx_passes/ir/error.h"
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
    throw UsageError(
        concat("--map: ", table.path, " has no column '", pair.name, "'", did_you_mean(pair.name, table.columns)),
        ErrorCode::kTableColumn);
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
      if (found == index.end()) {
        throw UsageError(
            concat("--columns: ", table.path, " has no column '", column, "'", did_you_mean(column, table.columns)),
            ErrorCode::kTableColumn);
      }
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

}  // namespace

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
  if (!rest.empty()) assigned.emplace(first, std::move(rest));
  return assigned;
}

}  // namespace onnx_train
