// Unigram language model: the split of a text into tokens whose scores, logarithms of probabilities, have the largest
// sum (Viterbi); https://arxiv.org/abs/1804.10959
#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/text_trie.h"
#include "runtime/data/tokenizer/token_model.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

// The best split of a text up to a position: its last token, which begins at `from`.
struct Best {
  double score = 0;
  int64_t token = 0, from = -1;  // -1: none ends here
};

class Unigram : public TokenModel {
 public:
  Unigram(const Json& json, Vocabulary vocabulary) : TokenModel(std::move(vocabulary)) {
    for (const Json& entry : json.at("vocab")) {
      trie_.add(entry.at(0).get_ref<const std::string&>(), std::ssize(scores_));
      scores_.push_back(entry.at(1));
      least_ = std::min(least_, scores_.back());
    }
    if (const Json unknown = json.value("unk_id", Json()); !unknown.is_null()) {
      unknown_ = unknown.get<int64_t>();
      if (unknown_ < 0 || unknown_ >= std::ssize(scores_))
        fail("'unk_id' is ", unknown_, " of ", scores_.size(), " tokens");
    }
    falls_back_ = json.value("byte_fallback", false);
  }

  void tokenize(std::string_view piece, std::vector<int64_t>* tokens) override {
    const std::vector<Best> best = best_splits(piece);
    std::vector<std::string_view> parts;
    bool was_unknown = false;  // unknown parts that follow each other are one
    for (auto end = std::ssize(piece); end > 0;) {
      const Best& last = best[static_cast<size_t>(end)];
      const bool is_unknown = last.token == unknown_;
      const std::string_view part = piece.substr(static_cast<size_t>(last.from), static_cast<size_t>(end - last.from));
      if (is_unknown && was_unknown) {
        parts.back() = {part.data(), part.size() + parts.back().size()};
      } else {
        parts.push_back(part);
      }
      was_unknown = is_unknown;
      end = last.from;
    }
    std::for_each(parts.rbegin(), parts.rend(), [&](std::string_view part) {
      if (const auto token = vocabulary().find(part)) return tokens->push_back(*token);
      if (falls_back_ && add_bytes(part, tokens)) return;
      tokens->push_back(unknown());
    });
  }

 private:
  int64_t unknown() const {
    if (unknown_ < 0) fail("a text has a character without a token, and the model names no 'unk_id'");
    return unknown_;
  }

  std::vector<Best> best_splits(std::string_view piece) const {
    constexpr double kUnknownPenalty = 10;  // SentencePiece's
    std::vector<Best> best(piece.size() + 1);
    for (size_t at = 0; at < piece.size();) {
      const double score = best[at].score;
      const size_t bytes = first_character(piece.substr(at)).bytes;
      bool is_known = false;
      const auto consider = [&](size_t length, int64_t token, double sum) {
        Best& end = best[at + length];
        if (end.from < 0 || sum > end.score) end = {sum, token, static_cast<int64_t>(at)};
      };
      trie_.for_each_beginning(piece.substr(at), [&](size_t length, int64_t token) {
        consider(length, token, scores_[static_cast<size_t>(token)] + score);
        is_known = is_known || length == bytes;
      });
      if (!is_known) consider(bytes, unknown_, least_ - kUnknownPenalty + score);
      at += bytes;
    }
    return best;
  }

  TextTrie trie_;
  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
  int64_t unknown_ = -1;
  bool falls_back_ = false;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const Json& json) {
  Vocabulary vocabulary;
  int64_t token = 0;
  for (const Json& entry : json.at("vocab")) vocabulary.add(entry.at(0), token++);
  return std::make_unique<Unigram>(json, std::move(vocabulary));
}

}  // namespace onnx_train
