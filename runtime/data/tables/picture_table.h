// A table of pictures, X.csv with a column path (file, filename), and what belongs to each of them:
//
//   a class          the column class (label, labels): whole numbers, or names, which are sorted. None may be blank
//   several classes  that column with --label-separator: "cat;dog"
//                    columns of zeros and ones, one for each class: all but the path's, where no column is called class
//   numbers          the columns that --columns names for the target
//
// Plain values; any thread. Functions throw Error that names file, line and column.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"
#include "runtime/data/images/files.h"
#include "runtime/data/tables/table.h"

namespace onnx_train {

bool is_picture_table(const DataTable& table);
// Gives the column of the files, path, and that of the target the names that --map says.
void rename_columns(const DataOptions& options, const InputSpec* target, DataTable* table);

struct PictureTable {
  std::shared_ptr<const PictureFiles> files;
  std::vector<std::string> columns;  // of the targets, where there are several numbers for each picture
};
// `target` is null for an entry point that takes none; `known` are the columns of its targets that the model was
// trained on, if any.
PictureTable read_picture_table(const DataTable& table, const InputSpec* target, const DataOptions& options,
                                const std::vector<std::string>& known);

}  // namespace onnx_train
