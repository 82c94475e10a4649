#include "runtime/data/tokenizer/added_tokens.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

// Where the spaces at the end of the text begin.
size_t end_without_spaces(std::string_view text) {
  while (!text.empty() && is_space(last_character(text).code)) text.remove_suffix(last_character(text).bytes);
  return text.size();
}

size_t spaces_at_start(std::string_view text) {
  size_t spaces = 0;
  while (spaces < text.size() && is_space(first_character(text.substr(spaces)).code))
    spaces += first_character(text.substr(spaces)).bytes;
  return spaces;
}

}  // namespace

AddedTokens::AddedTokens(const nlohmann::json& json, const Vocabulary& vocabulary,
                         const std::function<std::string(const std::string&)>& normalize) {
  int64_t next = vocabulary.size();
  for (const nlohmann::json& entry : json) {
    const std::string content = entry.at("content");
    if (content.empty()) continue;
    const auto known = vocabulary.find(content);
    const auto earlier = numbers_.find(content);
    const int64_t number = known ? *known : earlier != numbers_.end() ? earlier->second : next++;
    const bool is_normalized = entry.at("normalized");
    Token token{is_normalized ? normalize(content) : content, entry.at("single_word"), entry.at("lstrip"),
                entry.at("rstrip")};
    if (!token.decoded.empty()) (is_normalized ? normalized_ : given_).add(token.decoded, number);
    if (entry.at("special")) special_.insert(content);
    numbers_[content] = number;
    tokens_.insert_or_assign(number, std::move(token));
  }
}

void AddedTokens::split(In in, std::string_view text, const std::function<void(int64_t)>& token,
                        const std::function<void(size_t, size_t)>& between) const {
  const TextTrie& trie = in == In::kGiven ? given_ : normalized_;
  size_t covered = 0;
  for (size_t at = 0; !trie.empty() && at < text.size();) {
    size_t length = 0;
    int64_t number = 0;
    trie.for_each_beginning(text.substr(at), [&](size_t longer, int64_t found) {
      length = longer;
      number = found;
    });
    if (length == 0) {
      ++at;
      continue;
    }
    const Token& found = tokens_.at(number);
    size_t begin = at, end = at + length;
    at = end;
    if (found.is_word && ((begin > 0 && is_word(last_character(text.substr(0, begin)).code)) ||
                          (end < text.size() && is_word(first_character(text.substr(end)).code)))) {
      continue;
    }
    if (found.strips_left) begin = std::max(end_without_spaces(text.substr(0, begin)), covered);
    if (found.strips_right) end += spaces_at_start(text.substr(end));
    if (covered < begin) between(covered, begin);
    token(number);
    covered = end;
  }
  if (covered < text.size()) between(covered, text.size());
}

const std::string* AddedTokens::text_of(int64_t token) const {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : &found->second.decoded;
}

std::optional<int64_t> AddedTokens::find(std::string_view text) const {
  const auto found = numbers_.find(text);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

int64_t AddedTokens::largest() const {
  int64_t largest = -1;
  for (const auto& [number, token] : tokens_) largest = std::max(largest, number);
  return largest;
}

}  // namespace onnx_train
