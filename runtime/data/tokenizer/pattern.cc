#include "runtime/data/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

PCRE2_SPTR units_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

class Regex {
 public:
  // ^ and $ are at each line, as in the syntax of Hugging Face's library.
  explicit Regex(std::string expression) : expression_(std::move(expression)) {
    int code = 0;
    size_t at = 0;
    regex_ = pcre2_compile(units_of(expression_), expression_.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code,
                           &at, nullptr);
    if (!regex_) fail("the regular expression '", expression_, "' is none, at its byte ", at, ": ", message_of(code));
    pcre2_jit_compile(regex_, PCRE2_JIT_COMPLETE);  // where there is no compiler it is interpreted
  }
  ~Regex() { pcre2_code_free(regex_); }
  Regex(const Regex&) = delete;

  // Matches do not overlap, and an empty one does not follow another at once.
  void for_each(std::string_view text, const OnMatch& each) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
        pcre2_match_data_create_from_pattern(regex_, nullptr), pcre2_match_data_free);
    size_t from = 0, covered = 0;
    std::optional<size_t> last;
    uint32_t options = 0;  // the first search checks that the text is UTF-8
    while (from <= text.size()) {
      if (!finds(text, from, options, match.get())) break;
      options = PCRE2_NO_UTF_CHECK;
      const size_t *const ends = pcre2_get_ovector_pointer(match.get()), start = ends[0], stop = ends[1];
      if (start == stop && last == stop) {
        from += from < text.size() ? first_character(text.substr(from)).bytes : 1;
        continue;
      }
      if (covered < start) each({covered, start, false});
      each({start, stop, true});
      from = covered = stop;
      last = stop;
    }
    if (covered < text.size()) each({covered, text.size(), false});
  }

 private:
  bool finds(std::string_view text, size_t from, uint32_t options, pcre2_match_data* match) const {
    const auto search = [&](uint32_t more) {
      return pcre2_match(regex_, units_of(text), text.size(), from, options | more, match, nullptr);
    };
    int found = search(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      fail("the regular expression '", expression_, "' fails on a text: ", message_of(found));
    return found >= 0;
  }

  std::string expression_;
  pcre2_code* regex_ = nullptr;
};

}  // namespace

TextPattern TextPattern::text(std::string wanted) {
  if (wanted.empty()) fail("a pattern is an empty text");
  return TextPattern([wanted = std::move(wanted)](std::string_view text, const OnMatch& each) {
    size_t covered = 0;
    for (size_t at = 0; (at = text.find(wanted, at)) != std::string_view::npos;) {
      if (covered < at) each({covered, at, false});
      each({at, at + wanted.size(), true});
      covered = at += wanted.size();
    }
    if (covered < text.size()) each({covered, text.size(), false});
  });
}

TextPattern TextPattern::regex(const std::string& expression) {
  auto regex = std::make_shared<const Regex>(expression);
  return TextPattern([regex](std::string_view text, const OnMatch& each) { regex->for_each(text, each); });
}

TextPattern TextPattern::characters(bool (*belongs)(char32_t)) {
  return TextPattern([belongs](std::string_view text, const OnMatch& each) {
    size_t covered = 0, at = 0;
    while (at < text.size()) {
      const Character next = first_character(text.substr(at));
      const size_t begin = at;
      at += next.bytes;
      if (!belongs(next.code)) continue;
      if (covered < begin) each({covered, begin, false});
      each({begin, at, true});
      covered = at;
    }
    if (covered < text.size()) each({covered, text.size(), false});
  });
}

Behavior behavior_of(const std::string& name) {
  constexpr std::array<std::string_view, 5> kNames = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                      "Contiguous"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) fail("the behavior '", name, "' is not known");
  return static_cast<Behavior>(found - kNames.begin());
}

void split_at(const TextPattern& pattern, std::string_view text, Behavior behavior, bool invert,
              const std::function<void(size_t, size_t)>& each) {
  // Of the behaviors that merge: the part that the next one may continue.
  std::optional<TextMatch> pending;
  const auto flush = [&] {
    if (pending) each(pending->begin, pending->end);
    pending.reset();
  };
  pattern.for_each(text, [&](const TextMatch& found) {
    const TextMatch part = {found.begin, found.end, found.is_match != invert};
    if (behavior == Behavior::kRemoved || behavior == Behavior::kIsolated) {
      if (!part.is_match || behavior == Behavior::kIsolated) each(part.begin, part.end);
      return;
    }
    const bool continues =
        pending && (behavior == Behavior::kContiguous           ? pending->is_match == part.is_match
                    : behavior == Behavior::kMergedWithPrevious ? !pending->is_match && part.is_match
                                                                : pending->is_match && !part.is_match);
    if (!continues) {
      flush();
      pending = part;
      return;
    }
    pending->end = part.end;
    if (behavior != Behavior::kContiguous) flush();
  });
  flush();
}

}  // namespace onnx_train
