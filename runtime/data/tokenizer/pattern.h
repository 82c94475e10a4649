// What a step of a tokenizer looks for in a text: a text, a regular expression (by PCRE2), or characters. Values; any
// thread may search with one. They throw Error for an expression that is not one, and for a text on which it takes too
// long.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace onnx_train {

// A part of a text, [begin, end), and whether it is a match.
struct TextMatch {
  size_t begin, end;
  bool is_match;
};
using OnMatch = std::function<void(const TextMatch&)>;

class TextPattern {
 public:
  static TextPattern text(std::string wanted);  // which is not empty
  static TextPattern regex(const std::string& expression);
  static TextPattern characters(bool (*belongs)(char32_t));  // each is a match

  // Calls `each` with the matches and what is between them, in order: they cover the text.
  void for_each(std::string_view text, const OnMatch& each) const { search_(text, each); }

 private:
  using Search = std::function<void(std::string_view, const OnMatch&)>;
  explicit TextPattern(Search search) : search_(std::move(search)) {}

  Search search_;
};

// What becomes of a match between two pieces: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
Behavior behavior_of(const std::string& name);  // throws Error

// Calls `each` with the begin and end of the pieces into which the matches split the text. `invert`: what is between
// matches are the matches.
void split_at(const TextPattern& pattern, std::string_view text, Behavior behavior, bool invert,
              const std::function<void(size_t, size_t)>& each);

}  // namespace onnx_train
