#include "runtime/data/tokenizer/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <optional>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

const OnigUChar* onig_text(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string onig_message(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> message{};
  const int length =
      info ? onig_error_code_to_str(message.data(), code, info) : onig_error_code_to_str(message.data(), code);
  return {reinterpret_cast<const char*>(message.data()), static_cast<size_t>(std::max(length, 0))};
}

class Regex {
 public:
  explicit Regex(std::string expression) : expression_(std::move(expression)) {
    static const int ready = [] {
      OnigEncoding utf8 = ONIG_ENCODING_UTF8;
      return onig_initialize(&utf8, 1);
    }();
    if (ready != ONIG_NORMAL) fail("Oniguruma does not start: ", onig_message(ready));
    OnigErrorInfo info{};
    const char* const begin = expression_.data();
    const int code = onig_new(&regex_, onig_text(begin), onig_text(begin + expression_.size()), ONIG_OPTION_NONE,
                              ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
    if (code != ONIG_NORMAL) fail("the regular expression '", expression_, "' is none: ", onig_message(code, &info));
  }
  ~Regex() { onig_free(regex_); }
  Regex(const Regex&) = delete;

  // Matches do not overlap, and an empty one does not follow another at once.
  void for_each(std::string_view text, const OnMatch& each) const {
    const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(onig_region_new(),
                                                                    [](OnigRegion* r) { onig_region_free(r, 1); });
    const OnigUChar *begin = onig_text(text.data()), *end = begin + text.size();
    size_t from = 0, covered = 0;
    std::optional<size_t> last;
    while (from <= text.size()) {
      const int found = onig_search(regex_, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE);
      if (found == ONIG_MISMATCH) break;
      if (found < 0) fail("the regular expression '", expression_, "' fails on a text: ", onig_message(found));
      const auto start = static_cast<size_t>(region->beg[0]), stop = static_cast<size_t>(region->end[0]);
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
  std::string expression_;
  regex_t* regex_ = nullptr;
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
