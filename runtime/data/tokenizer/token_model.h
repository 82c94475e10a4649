// The part of a tokenizer that makes tokens of a piece of text, over a vocabulary: BPE, WordPiece, Unigram, WordLevel.
// One thread at a time uses a model, which remembers words that it has met. They throw Error for what a description
// lacks, and a JSON exception for a field of another form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace onnx_train {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

// Texts and their numbers, both ways.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(const nlohmann::json& object);  // {"text": number}

  void add(const std::string& text, int64_t token);  // the first text of a number and the last number of a text count
  std::optional<int64_t> find(std::string_view text) const;
  const std::string* text_of(int64_t token) const;  // null if there is none
  // Texts, or numbers where some have the same text.
  int64_t size() const { return static_cast<int64_t>(std::max(numbers_.size(), texts_.size())); }
  int64_t largest() const;  // -1 of none
  // The number of a text that the model needs. Throws Error that says what for.
  int64_t at(const std::string& text, const char* what) const;

 private:
  TextMap<int64_t> numbers_;
  std::unordered_map<int64_t, std::string> texts_;
};

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Adds the tokens of a piece, which is not empty.
  virtual void tokenize(std::string_view piece, std::vector<int64_t>* tokens) = 0;

 protected:
  // "<0x41>", ... of each byte, if the vocabulary has them all.
  bool add_bytes(std::string_view text, std::vector<int64_t>* tokens) const;

 private:
  Vocabulary vocabulary_;
};

std::unique_ptr<TokenModel> token_model_of(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_bpe(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_unigram(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_word_piece(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_word_level(const nlohmann::json& json);

}  // namespace onnx_train
