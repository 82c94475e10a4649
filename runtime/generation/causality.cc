#include "runtime/generation/causality.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"
#include "runtime/data/texts/label_shift.h"
#include "runtime/generation/logits.h"
#include "runtime/generation/text_windows.h"

namespace onnx_train {
namespace {

constexpr int64_t kRead = 8;  // tokens

// The logits of each text's last token but one.
Logits logits_before_last(Session* session, TextWindows* windows, const std::vector<int64_t>& text) {
  const TensorMap& outputs = session->run(Entry::kPredict, windows->of({text}, text[0]));
  return logits_at(outputs, {std::ssize(text) - 2});
}

}  // namespace

std::string seen_labels(Session* session, const Dataset& data, const EntryName& entry) {
  const std::vector<int64_t> tokens = tokens_before_labels(data, session->model(), entry);
  const auto other = std::ranges::find_if(tokens, [&](int64_t token) { return token != tokens[0]; });
  if (other == tokens.end() || !session->has_entry(Entry::kPredict)) return "";
  double difference = 0;
  try {
    TextWindows windows(*session, 1, 0, kRead);
    const auto read = std::min({kRead, windows.context(), std::ssize(tokens)});
    if (read < 2) return "";
    std::vector<int64_t> text(tokens.begin(), tokens.begin() + read);
    const Logits logits = logits_before_last(session, &windows, text);
    text.back() = text.back() == tokens[0] ? *other : tokens[0];
    difference = relative_difference(logits, logits_before_last(session, &windows, text));
  } catch (const Error&) {
    return "";  // no language model in the form that `sample` reads
  }
  session->draw_again(Entry::kPredict);
  session->drop_plans(Entry::kPredict);  // which may hold weights in another layout
  if (difference <= kRoundingOfLogits) return "";
  return "the labels are the tokens that follow, and the logits of a token change with the token after it, so that the "
         "model would learn to copy it: a model that reads in both directions, as BERT does, takes labels of masked "
         "tokens, or of the text, and a decoder is exported with its causal mask";
}

}  // namespace onnx_train
