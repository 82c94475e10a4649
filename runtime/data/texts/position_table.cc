#include "runtime/data/texts/position_table.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {
namespace {

// Whether a constant holds 0, 1, 2, ... as far as the table goes, a buffer of positions.
bool counts(const Value& constant, int64_t rows) {
  if (!constant.is_initializer() || !is_integer(constant.dtype()) || !constant.type().is_static()) return false;
  if (num_elements(constant.type().shape()) < 2) return false;
  const Tensor numbers = contents_of(constant);
  for (int64_t i = 0; i < numbers.size(); ++i) {
    if (numbers.at(i) != static_cast<double>(i)) return false;
  }
  return numbers.size() <= rows;
}

// Operators of buckets and remainders: numbers that stay within the table however long the text is.
constexpr std::array<std::string_view, 4> kBounded = {"Clip", "Log", "Min", "Mod"};

// One position for each token: [tokens], or [1 or batch, tokens]; those of pairs of tokens are relative.
bool is_one_for_each(const Value& index) {
  if (!index.has_rank() || index.rank() < 1 || index.rank() > 2) return false;
  if (index.rank() == 1) return true;
  const Dims& dims = *index.type().dims;
  return (dims[0].known() && dims[0].value() == 1) || !dims[0].same(dims[1]);
}

// Inputs as transformers names them: a guess.
bool is_named_after(const Value& input, const char* what) {
  const std::string& name = input.name();
  return name.find(what) != std::string::npos;
}

// Whether positions are counted in what `index` is computed from. Sizes of values are not their contents.
bool is_position(const Value* index, int64_t rows) {
  bool found = false;
  Marks<Value> seen;
  std::vector<const Value*> pending = {index};
  while (!pending.empty()) {
    const Value* value = pending.back();
    pending.pop_back();
    if (!value || seen.contains(value)) continue;
    seen.insert(value);
    const Node* node = value->producer();
    if (!node) {
      const bool is_input = value->graph().is_input(value) && !value->is_initializer();
      const bool is_named = is_named_after(*value, "position");
      // Positions may be counted in a mask, which holds no tokens.
      if (is_input && !is_named && !is_named_after(*value, "mask")) return false;
      found = found || (is_input && is_named) || counts(*value, rows);
      continue;
    }
    if (node->is("Shape") || node->is("Size")) continue;
    if (std::count(kBounded.begin(), kBounded.end(), node->op()) > 0) return false;
    found = found || node->is("Range") || node->is("CumSum");
    for (const Value* input : node->inputs()) pending.push_back(input);
  }
  return found;
}

// The axis along which a Slice takes as many rows as the network counts, from the first one on; -1 for other slices.
int64_t axis_of_first_rows(const Node& slice) {
  const Tensor starts = constant_of(slice.input(1)), axes = constant_of(slice.input(3));
  const bool is_computed = slice.input(2) && constant_of(slice.input(2)).empty();
  if (!is_computed || starts.size() != 1 || starts.at(0) != 0 || axes.size() != 1) return -1;
  return static_cast<int64_t>(axes.at(0));
}

}  // namespace

PositionTable position_table(const Model& model) {
  PositionTable found;
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (!node->is("Gather") && !node->is("Slice")) continue;
    const Value* table = node->input(0);
    if (!table || !table->is_initializer() || !is_float(table->dtype()) || !table->type().is_static()) continue;
    const int64_t axis = node->is("Gather") ? node->attr("axis", 0) : axis_of_first_rows(*node);
    if (axis < 0 || axis > 1 || table->rank() != axis + 2) continue;  // [positions, n] or [1, positions, n]
    const int64_t rows = table->type().shape()[static_cast<size_t>(axis)];
    if (found.positions > 0 && rows >= found.positions) continue;
    const bool is_one = node->is("Slice") || (is_one_for_each(*node->input(1)) && is_position(node->input(1), rows));
    if (is_one) found = {table->name(), rows};
  }
  return found;
}

}  // namespace onnx_train
