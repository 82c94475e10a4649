#include "runtime/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

namespace onnx_train {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes at `at` are a whole character; 0 if they are none, and then `*part` are the bytes of the longest part
// of one (Unicode 15, table 3-7).
size_t character_at(std::string_view text, size_t at, size_t* part) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned>(static_cast<unsigned char>(text[at + i])) : 0u;
  };
  const unsigned first = byte(0);
  *part = 1;
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  const unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xBF)) return 0;
    *part = i + 1;
  }
  return length;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

}  // namespace

size_t invalid_at(std::string_view text) {
  for (size_t at = 0, part = 0; at < text.size();) {
    const size_t bytes = character_at(text, at, &part);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::string_view::npos;
}

std::string repaired(std::string_view bytes) {
  std::string text;
  for (size_t at = 0, part = 0; at < bytes.size();) {
    const size_t whole = character_at(bytes, at, &part);
    text += whole > 0 ? bytes.substr(at, whole) : kReplacement;
    at += whole > 0 ? whole : part;
  }
  return text;
}

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

Character last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return first_character(text.substr(at));
}

void append(std::string* text, char32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool is_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_word(char32_t code) {
  const bool joins = code == 0x200C || code == 0x200D;
  // Signs that are letters in circles and squares.
  const bool is_enclosed = (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
                           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
  const auto c = category(code);
  return joins || is_enclosed || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

bool is_numeric(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
           (code >= '{' && code <= '~');
  }
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t code) { return category(code) == UTF8PROC_CATEGORY_MN; }

bool is_control(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

bool is_ideograph(char32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
         (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

std::string normalized(std::string_view text, Normalization form) {
  if (text.empty() || is_ascii(text)) return std::string(text);
  const bool composes = form == Normalization::kNFC || form == Normalization::kNFKC;
  const bool is_compatible = form == Normalization::kNFKC || form == Normalization::kNFKD;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (is_compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  if (size < 0) throw std::bad_alloc();  // of UTF-8, utf8proc refuses nothing else
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(size)};
}

std::string lowercase(std::string_view text) {
  constexpr char32_t kCapitalDottedI = 0x130, kDotAbove = 0x307;  // the one character that becomes two
  std::string lower;
  lower.reserve(text.size());
  for_each_character(text, [&](char32_t code, size_t) {
    append(&lower, code == kCapitalDottedI
                       ? U'i'
                       : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    if (code == kCapitalDottedI) append(&lower, kDotAbove);
  });
  return lower;
}

std::string uppercase(std::string_view text) {
  constexpr char32_t kSharpS = 0xDF;
  std::string upper;
  for_each_character(text, [&](char32_t code, size_t) {
    append(&upper,
           code == kSharpS ? U'S' : static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
    if (code == kSharpS) upper += 'S';
  });
  return upper;
}

size_t first_grapheme(std::string_view text) {
  Character last = first_character(text);
  utf8proc_int32_t state = 0;
  size_t end = last.bytes;
  while (end < text.size()) {
    const Character next = first_character(text.substr(end));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    end += next.bytes;
    last = next;
  }
  return end;
}

}  // namespace onnx_train
