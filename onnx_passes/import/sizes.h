// Sizes of symbolic dimensions that a user gives as NAME=N. Functions on plain values and on a graph that one caller
// owns; they throw Error that says what the text should be.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

using Sizes = std::map<std::string, int64_t>;

// "len=3" as a name and a size.
std::pair<std::string, int64_t> parse_size(const std::string& text);
// Several; UsageError's kind of Error for a name that is given twice.
Sizes parse_sizes(const std::vector<std::string>& texts);

// The size of a dimension such as "8*batch" or "past + 1" from those of its names; nothing if one of them is not known.
std::optional<int64_t> evaluate_size(const std::string& symbol, const Sizes& sizes);

// `type` with the sizes of its dimensions that `sizes` determines.
TensorType with_sizes(TensorType type, const Sizes& sizes);

// Gives the dimensions of the graph's inputs their sizes. Throws Error for a name that no input has.
void fix_dimensions(Graph* graph, const Sizes& sizes);

}  // namespace onnx_train
