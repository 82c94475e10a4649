#include "runtime/generation/text_windows.h"

#include <algorithm>
#include <bit>

#include "onnx_passes/ir/error.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/texts/position_table.h"

namespace onnx_train {
namespace {

constexpr int64_t kShortestWindow = 16;

}  // namespace

TextWindows::TextWindows(const Session& session, int64_t texts, int64_t context, int64_t usual)
    : inputs_(entry_inputs(session.model(), Entry::kPredict)) {
  tokens_ = token_inputs(inputs_).tokens;
  if (!tokens_) fail("a model that writes text has an input int64[batch, tokens]; this one takes ", names());
  const Dim &batch = (*tokens_->type.dims)[0], &length = (*tokens_->type.dims)[1];
  rows_ = batch.known() ? batch.value() : texts;
  if (texts > rows_) {
    throw UsageError(
        concat("the model takes ", rows_, " texts at a time, ", to_string(tokens_->type), ", not ", texts));
  }
  if (length.known()) fixed_ = length.value();
  if (fixed_ > 0 && context > fixed_)
    throw UsageError(concat("--context is ", context, ", but '", tokens_->name, "' takes ", fixed_, " tokens"));
  const PositionTable table = position_table(session.model());
  if (table.positions > 0 && context > table.positions) {
    throw UsageError(concat("--context is ", context, ", but '", table.weight, "' has ", table.positions,
                            " positions: --context ", table.positions, " at most"));
  }
  if (table.positions > 0) usual = std::min(table.positions, usual);
  context_ = context > 0 ? context : fixed_ > 0 ? fixed_ : usual;
  for (const InputSpec& spec : inputs_) {
    if (&spec == tokens_ || spec.has_default || is_filled(spec)) continue;
    fail("the model also takes '", spec.name, "' ", to_string(spec.type),
         ", which is no part of a text: export it without a cache of earlier tokens");
  }
}

int64_t TextWindows::read_of(const std::vector<int64_t>& text) const {
  return std::min(static_cast<int64_t>(text.size()), context_);
}

const TensorMap& TextWindows::of(const Texts& texts, int64_t padding) {
  int64_t longest = 1;
  for (const auto& text : texts) longest = std::max(longest, read_of(text));
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
  const int64_t length = fixed_ > 0 ? fixed_ : std::min(context_, std::max(rounded, kShortestWindow));
  const Shape shape{rows_, length};
  for (const InputSpec& spec : inputs_) {
    if (spec.has_default) continue;
    Tensor& input = made_[spec.name];
    if (input.shape() != shape) input = &spec == tokens_ ? Tensor(spec.type.dtype, shape) : filled_input(spec, shape);
  }
  for (int64_t row = 0; row < rows_; ++row) {
    const std::vector<int64_t>& text = texts[static_cast<size_t>(std::min<int64_t>(row, std::ssize(texts) - 1))];
    const int64_t read = read_of(text), from = std::ssize(text) - read;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t token = t < read ? text[static_cast<size_t>(from + t)] : padding;
      made_.at(tokens_->name).set(row * length + t, static_cast<double>(token));
      for (const InputSpec& spec : inputs_) {
        if (is_mask(spec)) made_.at(spec.name).set(row * length + t, t < read ? 1 : 0);
      }
    }
  }
  return made_;
}

std::string TextWindows::names() const {
  std::string names;
  for (const InputSpec& spec : inputs_)
    names += concat(names.empty() ? "" : ", ", spec.name, " ", to_string(spec.type));
  return names;
}

}  // namespace onnx_train
