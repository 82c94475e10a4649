// Tables: from fields of text to the arrays of a model's inputs. A column whose first value is a number holds numbers;
// any other holds texts, which become their places in the sorted list of all texts of the column. The model that is
// trained on a table keeps these lists as metadata, so that every other table is read alike: kClassNames has that of
// the labels, kTableColumns is a JSON object from column to its list, or to the number that its missing values become,
// and kTableInputs one from input to the list of its columns. Plain values; any thread. Functions throw Error that
// names file, line and column.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/files/read_options.h"

namespace onnx_train {

struct DataTable {
  std::string path;
  std::vector<std::string> columns;
  std::vector<std::string_view> fields;  // row by row
  std::vector<int64_t> lines;            // of each row, in the file
  std::shared_ptr<const void> owner;     // of the fields,
  std::deque<std::string> unquoted;      // but for those that the file writes otherwise

  size_t rows() const { return lines.size(); }
  std::string_view field(size_t row, size_t column) const { return fields[row * columns.size() + column]; }
};

DataTable read_csv(const std::string& path);
// Numbers, true and false; nothing for a text.
std::optional<double> number_in(std::string_view field);
bool is_whole(double x);  // an integer that a double holds exactly
bool is_missing(std::string_view field);
// The columns that the model was trained on, by input, from its metadata.
using KnownColumns = std::map<std::string, std::vector<std::string>>;
KnownColumns trained_columns(const std::map<std::string, std::string>& metadata);
std::string columns_to_json(const KnownColumns& columns);

// The sizes of a sample of the input; nothing where the model leaves one open.
std::optional<Shape> sizes_of_sample(const InputSpec& input);

// Columns that hold the labels where none has the name of the loss's target.
inline const std::vector<std::string> kLabelColumns = {"class", "label", "labels"};

// The columns that each input takes, by position: those that --columns names; else the column of its name; else NAME0,
// NAME1, ... or NAME_0, NAME_1, ...; else those of `known`, by input, that the model was trained on; the loss's first
// target else one of kLabelColumns; the model's first input, where it has none of these, takes all that are left. --map
// renames columns first. Throws Error where these are not as many as the input has elements.
using AssignedColumns = std::map<std::string, std::vector<size_t>>;
AssignedColumns assign_columns(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                               const KnownColumns& known);

// `rows`, unless it is null, receives the rows of the table that the arrays have.
DataArrays arrays_of(const DataTable& table, const std::vector<InputSpec>& inputs, const ReadOptions& options,
                     std::vector<size_t>* rows = nullptr);

}  // namespace onnx_train
