// Vocabularies of words: WordPiece takes the longest token that a word begins with, then the longest one that goes on
// with it (https://arxiv.org/abs/1609.08144); WordLevel takes whole words.
#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/token_model.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

class WordPiece : public TokenModel {
 public:
  WordPiece(const Json& json, Vocabulary vocabulary)
      : TokenModel(std::move(vocabulary)),
        unknown_(json.at("unk_token")),
        prefix_(json.at("continuing_subword_prefix")),
        longest_(json.at("max_input_chars_per_word")) {}

  void tokenize(std::string_view piece, std::vector<int64_t>* tokens) override {
    const size_t before = tokens->size();
    int64_t characters = 0;
    for_each_character(piece, [&](char32_t, size_t) { ++characters; });
    bool is_known = characters <= longest_;
    for (size_t at = 0; is_known && at < piece.size();) {
      const size_t length = add_longest(piece.substr(at), at > 0, tokens);
      is_known = length > 0;
      at += length;
    }
    if (is_known) return;
    tokens->resize(before);
    tokens->push_back(vocabulary().at(unknown_, "the unknown token"));
  }

 private:
  // Adds the longest token at the start of `rest`, and returns its bytes there; 0 if there is none.
  size_t add_longest(std::string_view rest, bool continues, std::vector<int64_t>* tokens) const {
    std::string text = concat(continues ? prefix_ : "", rest);
    const size_t prefix = text.size() - rest.size();
    while (text.size() > prefix) {
      if (const auto token = vocabulary().find(text)) {
        tokens->push_back(*token);
        return text.size() - prefix;
      }
      text.resize(text.size() - last_character(text).bytes);
    }
    return 0;
  }

  std::string unknown_, prefix_;
  int64_t longest_;
};

class WordLevel : public TokenModel {
 public:
  WordLevel(const Json& json, Vocabulary vocabulary)
      : TokenModel(std::move(vocabulary)), unknown_(json.at("unk_token")) {}

  void tokenize(std::string_view piece, std::vector<int64_t>* tokens) override {
    const auto token = vocabulary().find(piece);
    tokens->push_back(token ? *token : vocabulary().at(unknown_, "the unknown token"));
  }

 private:
  std::string unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> make_word_piece(const Json& json) {
  return std::make_unique<WordPiece>(json, Vocabulary(json.at("vocab")));
}

std::unique_ptr<TokenModel> make_word_level(const Json& json) {
  return std::make_unique<WordLevel>(json, Vocabulary(json.at("vocab")));
}

}  // namespace onnx_train
