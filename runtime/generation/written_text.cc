#include "runtime/generation/written_text.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr const char* kUnknown = "\xEF\xBF\xBD";  // U+FFFD, which a tokenizer gives for a part of a character

// The bytes of the text up to a character at its end of which there is but a part.
size_t whole_characters(std::string_view text) {
  constexpr size_t kMostBytes = 4;
  for (size_t back = 1; back < kMostBytes && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // it follows another one
    const size_t bytes = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    return bytes > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

WrittenText::WrittenText(const Tokenizer* tokenizer, std::vector<int64_t> prompt, std::vector<std::string> stops,
                         Stops shows)
    : tokenizer_(tokenizer), tokens_(std::move(prompt)), stops_(std::move(stops)), shows_(shows) {
  prompt_ = text_of(/*skips_special=*/false);
  text_ = text_of(/*skips_special=*/true);
}

std::string WrittenText::text_of(bool skips_special) const {
  if (tokenizer_) return tokenizer_->decode(tokens_, skips_special);
  constexpr int64_t kBytes = 256;
  std::string text;
  for (const int64_t token : tokens_) {
    if (token < 0 || token >= kBytes) {
      fail("token ", token,
           " is no byte: --tokenizer names the tokenizer.json that belongs to the model, or give --prompt-ids");
    }
    text += static_cast<char>(token);
  }
  return text;
}

bool WrittenText::add(int64_t token) {
  tokens_.push_back(token);
  text_ = text_of(/*skips_special=*/true);
  is_stopped_ = !stops_.empty() && ends_with_stop();
  return is_stopped_;
}

// Cuts what the last token has after a stop, and with kHidden the stop.
bool WrittenText::ends_with_stop() {
  const std::string all = text_of(/*skips_special=*/false);
  const auto [from, end] = std::ranges::mismatch(all, prompt_);
  const auto begin = static_cast<size_t>(from - all.begin());
  size_t first = std::string::npos, size = 0;
  for (const std::string& stop : stops_) {
    const size_t at = all.find(stop, begin);
    if (at == std::string::npos || (first != std::string::npos && first + size <= at + stop.size())) continue;
    first = at;
    size = stop.size();
  }
  if (first == std::string::npos) return false;
  const std::string_view rest = std::string_view(all).substr(shows_ == Stops::kShown ? first + size : first);
  if (text_.ends_with(rest)) text_.resize(text_.size() - rest.size());  // special tokens are no part of it
  return true;
}

// How many bytes of the text no later token changes.
size_t WrittenText::ready() const {
  size_t size = whole_characters(text_);
  if (tokenizer_ && text_.ends_with(kUnknown)) size = std::min(size, given_);
  if (shows_ == Stops::kShown) return size;
  for (const std::string& stop : stops_) {
    for (size_t part = std::min(stop.size() - 1, text_.size()); part > 0; --part) {
      if (!text_.ends_with(std::string_view(stop).substr(0, part))) continue;
      size = std::min(size, text_.size() - part);
      break;
    }
  }
  return size;
}

std::string WrittenText::more(bool all) {
  const size_t size = all || is_stopped_ ? text_.size() : ready();
  if (size <= given_) return "";
  std::string rest = text_.substr(given_, size - given_);
  given_ = size;
  return rest;
}

}  // namespace onnx_train
