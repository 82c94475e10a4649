// Tokens that a tokenizer finds in a text before its model sees it, such as <|endoftext|>: as they are written, or, the
// normalized ones, in the text after normalization. Values; any thread may search.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/tokenizer/text_trie.h"
#include "runtime/data/tokenizer/token_model.h"

namespace onnx_train {

class AddedTokens {
 public:
  AddedTokens() = default;
  // `json` is the list, or null. Tokens that the vocabulary lacks get the numbers after it. `normalize` is what the
  // normalizers make of a text.
  AddedTokens(const nlohmann::json& json, const Vocabulary& vocabulary,
              const std::function<std::string(const std::string&)>& normalize);

  // Calls `token(number)` and `between(begin, end)` for what they find in the text, in order.
  enum class In { kGiven, kNormalized };
  void split(In in, std::string_view text, const std::function<void(int64_t)>& token,
             const std::function<void(size_t, size_t)>& between) const;

  const std::string* text_of(int64_t token) const;  // as a decoder takes it; null if it is none of these
  bool is_special(const std::string& text) const { return special_.count(text) > 0; }
  std::optional<int64_t> find(std::string_view text) const;
  int64_t largest() const;  // -1 of none

 private:
  struct Token {
    std::string decoded;
    bool is_word, strips_left, strips_right;
  };

  std::unordered_map<int64_t, Token> tokens_;
  TextMap<int64_t> numbers_;
  std::set<std::string> special_;
  TextTrie given_, normalized_;
};

}  // namespace onnx_train
