#include "runtime/data/texts/label_shift.h"

#include <algorithm>
#include <cstring>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "runtime/data/files/tokens.h"

namespace onnx_train {
namespace {

// The integers of a row.
std::vector<int64_t> integers_of(const Dataset::Array& array, int64_t index) {
  Tensor buffer;
  const char* from = array.row_data(index, &buffer);
  std::vector<int64_t> row(static_cast<size_t>(num_elements(array.row)));
  dispatch_integer(array.rows.dtype(), [&](auto tag) {
    for (size_t t = 0; t < row.size(); ++t)
      row[t] = static_cast<int64_t>(load_element<decltype(tag)>(from, static_cast<int64_t>(t)));
  });
  return row;
}

// The arrays of the tokens and of their labels; null where the entry point takes none, or where they are no integers of
// one shape.
struct TokenArrays {
  const Dataset::Array* tokens = nullptr;
  const Dataset::Array* labels = nullptr;
};

TokenArrays token_arrays(const Dataset& data, const Model& model, const EntryName& entry) {
  const std::vector<InputSpec> inputs = entry_inputs(model, entry);
  const TokenInputs names = token_inputs(inputs);
  if (!names.tokens || !names.labels) return {};
  const Dataset::Array *tokens = data.find(names.tokens->name), *labels = data.find(names.labels->name);
  if (!tokens || !labels || !tokens->per_sample || !labels->per_sample || tokens->row != labels->row) return {};
  if (!is_integer(tokens->rows.dtype()) || !is_integer(labels->rows.dtype())) return {};
  return {tokens, labels};
}

}  // namespace

std::string copied_labels(const Dataset& data, const Model& model, const EntryName& entry) {
  const auto [tokens, labels] = token_arrays(data, model, entry);
  if (!tokens || labels->rows.reader()) return "";
  bool is_moved = false;  // whether the labels would be others if they followed the tokens
  for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
    const std::vector<int64_t> from = integers_of(*tokens, data.row_of(sample)),
                               to = integers_of(*labels, data.row_of(sample));
    for (size_t t = 0; t < to.size(); ++t) {
      if (to[t] < 0) continue;  // ignored
      if (to[t] != from[t]) return "";
      is_moved = is_moved || (t + 1 < from.size() && to[t] != from[t + 1]);
    }
  }
  if (!is_moved) return "";
  return concat(
      "'", labels->name, "' equals '", tokens->name,
      "' wherever it is not negative, so that the model would learn to repeat its input: label t is the token "
      "after token t here, while the models of transformers shift labels inside; --shift-labels shifts them");
}

std::vector<int64_t> tokens_before_labels(const Dataset& data, const Model& model, const EntryName& entry) {
  const auto [tokens, labels] = token_arrays(data, model, entry);
  if (!tokens) return {};
  constexpr int64_t kMostLooked = 64;  // of chats, samples without an answer have no labels
  for (int64_t sample = 0; sample < std::min(data.num_samples(), kMostLooked); ++sample) {
    const std::vector<int64_t> from = integers_of(*tokens, data.row_of(sample)),
                               to = integers_of(*labels, data.row_of(sample));
    bool is_moved = false;  // whether the labels would be others if they were the tokens
    for (size_t t = 0; t + 1 < to.size(); ++t) {
      if (to[t] < 0) continue;  // ignored
      if (to[t] != from[t + 1]) return {};
      is_moved = is_moved || to[t] != from[t];
    }
    if (is_moved) return from;
  }
  return {};
}

void shift_labels(DataArrays* data, const std::vector<InputSpec>& inputs, int64_t ignored) {
  const TokenInputs names = token_inputs(inputs);
  if (!names.labels) throw UsageError("--shift-labels: the model takes no labels int64[batch, tokens]");
  const std::string& name = names.labels->name;
  const auto found = data->arrays.find(name);
  if (found == data->arrays.end()) return;
  if (found->second.reader())
    throw UsageError(concat("--shift-labels: '", name, "' of files of tokens follows the tokens already"));
  const Tensor& given = found->second.stored();
  if (!is_integer(given.dtype()) || given.shape().size() != 2) return;  // a Dataset says what the model expects
  const int64_t length = given.shape()[1];
  Tensor shifted(DType::kInt64, given.shape());
  auto* to = shifted.data<int64_t>();
  dispatch_integer(given.dtype(), [&](auto tag) {
    for (int64_t i = 0; i < given.size(); ++i)
      to[i] = (i + 1) % length == 0 ? ignored : static_cast<int64_t>(load_element<decltype(tag)>(given.data(), i + 1));
  });
  found->second = shifted;
}

}  // namespace onnx_train
