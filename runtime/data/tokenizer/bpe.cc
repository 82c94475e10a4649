// Byte-pair encoding: of the characters of a word, the pair that comes first in the list of merges becomes one symbol,
// until no pair is in the list; https://arxiv.org/abs/1508.07909
#include <queue>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/token_model.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

struct Merged {
  int64_t rank, token;
};

struct PairHash {
  size_t operator()(const std::pair<int64_t, int64_t>& pair) const {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // of the golden ratio
    const uint64_t both = static_cast<uint64_t>(pair.first) << 32 ^ static_cast<uint64_t>(pair.second);
    return static_cast<size_t>((both ^ both >> 29) * kOdd >> 16);
  }
};
using Merges = std::unordered_map<std::pair<int64_t, int64_t>, Merged, PairHash>;

// A symbol of a word, in a list; `next` is -1 for the last one.
struct Symbol {
  int64_t token, previous, next;
  bool is_gone = false;
};

// A pair that may be merged: the one of the lowest rank first, and of these the one that comes first.
struct Candidate {
  int64_t rank, position, token;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

void merge_all(std::vector<Symbol>* word, const Merges& merges) {
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int64_t left, int64_t right) {
    if (left < 0 || right < 0) return;
    const auto found =
        merges.find({(*word)[static_cast<size_t>(left)].token, (*word)[static_cast<size_t>(right)].token});
    if (found != merges.end()) queue.push({found->second.rank, left, found->second.token});
  };
  for (int64_t i = 0; i + 1 < std::ssize(*word); ++i) consider(i, i + 1);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = (*word)[static_cast<size_t>(top.position)];
    if (left.is_gone || left.next < 0) continue;
    Symbol& right = (*word)[static_cast<size_t>(left.next)];
    const auto found = merges.find({left.token, right.token});
    if (found == merges.end() || found->second.token != top.token) continue;  // one of both has changed
    left.token = top.token;
    left.next = right.next;
    right.is_gone = true;
    if (left.next >= 0) (*word)[static_cast<size_t>(left.next)].previous = top.position;
    consider(left.previous, top.position);
    consider(top.position, left.next);
  }
}

class Bpe : public TokenModel {
 public:
  Bpe(const Json& json, Vocabulary vocabulary)
      : TokenModel(std::move(vocabulary)),
        prefix_(text_in(json, "continuing_subword_prefix")),
        suffix_(text_in(json, "end_of_word_suffix")),
        fuses_unknown_(flag_in(json, "fuse_unk")),
        falls_back_(flag_in(json, "byte_fallback")),
        takes_whole_words_(flag_in(json, "ignore_merges")) {
    const Json dropout = json.value("dropout", Json());
    if (!dropout.is_null() && dropout.get<double>() != 0)
      fail("the model's dropout of ", dropout.dump(), " draws other tokens each time; set it to null");
    if (const Json unknown = json.value("unk_token", Json()); !unknown.is_null()) unknown_ = unknown.get<std::string>();
    read_merges(json.at("merges"));
  }

  void tokenize(std::string_view piece, std::vector<int64_t>* tokens) override {
    if (takes_whole_words_) {
      if (const auto whole = this->vocabulary().find(piece)) return tokens->push_back(*whole);
    }
    if (const auto known = known_.find(piece); known != known_.end()) {
      tokens->insert(tokens->end(), known->second.begin(), known->second.end());
      return;
    }
    const std::vector<int64_t> made = merged(piece);
    tokens->insert(tokens->end(), made.begin(), made.end());
    if (piece.size() <= kLongestKnown && known_.size() < kMostKnown) known_.emplace(piece, made);
  }

 private:
  static constexpr size_t kLongestKnown = 64, kMostKnown = size_t{1} << 17;

  static std::string text_in(const Json& json, const char* field) {
    const Json text = json.value(field, Json());
    return text.is_null() ? "" : text.get<std::string>();
  }
  static bool flag_in(const Json& json, const char* field) {
    const Json flag = json.value(field, Json());
    return !flag.is_null() && flag.get<bool>();
  }

  // ["a b", ...] or [["a", "b"], ...]
  void read_merges(const Json& merges) {
    int64_t rank = 0;
    for (const Json& merge : merges) {
      std::string left, right;
      if (merge.is_array()) {
        if (merge.size() != 2) fail("a merge has ", merge.size(), " parts, not two: ", merge.dump());
        left = merge[0];
        right = merge[1];
      } else {
        const std::string both = merge;
        if (both.starts_with("#version")) continue;
        const size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
          fail("the merge '", both, "' is not two texts with a space between");
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
      constexpr const char* kPart = "a part of a merge,";
      if (!right.starts_with(prefix_))
        fail("the second part of the merge '", left, "', '", right, "' lacks '", prefix_, "'");
      const int64_t token = vocabulary().at(left + right.substr(prefix_.size()), "what a merge makes,");
      merges_[{vocabulary().at(left, kPart), vocabulary().at(right, kPart)}] = {rank++, token};
    }
  }

  std::vector<int64_t> merged(std::string_view piece) {
    std::vector<int64_t> tokens;
    bool is_unknown = false;  // of the character before
    for_each_character(piece, [&](char32_t, size_t at) {
      const size_t bytes = first_character(piece.substr(at)).bytes;
      std::string_view part = piece.substr(at, bytes);
      std::string spelled;
      if ((at > 0 && !prefix_.empty()) || (at + bytes == piece.size() && !suffix_.empty())) {
        spelled = concat(at > 0 ? prefix_ : "", part, at + bytes == piece.size() ? suffix_ : "");
        part = spelled;
      }
      add_character(part, &tokens, &is_unknown);
    });
    if (is_unknown) tokens.push_back(vocabulary().at(*unknown_, "the unknown token"));
    std::vector<Symbol> word;
    word.reserve(tokens.size());
    for (const int64_t token : tokens) {
      const int64_t i = std::ssize(word);
      word.push_back({token, i - 1, i + 1 < std::ssize(tokens) ? i + 1 : -1});
    }
    merge_all(&word, merges_);
    tokens.clear();
    for (const Symbol& symbol : word) {
      if (!symbol.is_gone) tokens.push_back(symbol.token);
    }
    return tokens;
  }

  // An unknown token comes after the bytes of characters that follow it, as long as none has a token of its own.
  void add_character(std::string_view part, std::vector<int64_t>* tokens, bool* is_unknown) {
    const auto flush = [&] {
      if (*is_unknown) tokens->push_back(vocabulary().at(*unknown_, "the unknown token"));
      *is_unknown = false;
    };
    if (const auto token = vocabulary().find(part)) {
      flush();
      tokens->push_back(*token);
      return;
    }
    if (falls_back_ && add_bytes(part, tokens)) return;
    if (!unknown_) return;
    if (!fuses_unknown_) flush();
    *is_unknown = true;
    vocabulary().at(*unknown_, "the unknown token");
  }

  std::string prefix_, suffix_;
  bool fuses_unknown_, falls_back_, takes_whole_words_;
  std::optional<std::string> unknown_;
  Merges merges_;
  TextMap<std::vector<int64_t>> known_;
};

}  // namespace

std::unique_ptr<TokenModel> make_bpe(const Json& json) {
  return std::make_unique<Bpe>(json, Vocabulary(json.at("vocab")));
}

}  // namespace onnx_train
