// Texts with labels, for models that tell classes of texts apart: a table X.csv, or X.jsonl with an object a line, with
// a column "text" and one of labels; for a prediction also X.txt, each line of which is a text. A text is a sample: its
// bytes are its tokens, or those of --tokenizer are, cut to the length that the model takes, or filled up, where the
// mask of the model is 0. Labels are read as those of any table (tables/table.h). Functions run on any thread, and
// throw Error that names file and line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"
#include "runtime/data/tables/table.h"

namespace onnx_train {

// Whether the model takes tokens, and a label for each text, or was trained so, or predicts something of each text.
bool takes_labelled_texts(const std::vector<InputSpec>& inputs, const ReadOptions& options);
// Whether the texts alone are enough: for a prediction.
bool takes_texts_alone(const std::vector<InputSpec>& inputs, const ReadOptions& options);

DataTable read_json_lines(const std::string& path);
// Each line is a text, also an empty one.
DataTable read_text_lines(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options);
// Nothing where the table has no column of texts.
std::optional<DataArrays> open_labelled_texts(const DataTable& table, const std::vector<InputSpec>& inputs,
                                              const ReadOptions& options);

}  // namespace onnx_train
