// UTF-8 and what Unicode says of characters, by utf8proc. Texts are valid UTF-8, which `invalid_at` tells. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace onnx_train {

// The position of the first byte that is no UTF-8; npos if there is none.
size_t invalid_at(std::string_view text);
// The text with U+FFFD for each longest part of a character that is cut off, and for each other byte that is no UTF-8.
std::string repaired(std::string_view bytes);

struct Character {
  char32_t code;
  size_t bytes;
};
// The character at the start of a text that is not empty.
Character first_character(std::string_view text);
Character last_character(std::string_view text);
void append(std::string* text, char32_t code);

template <typename F>  // f(code, position)
void for_each_character(std::string_view text, const F& f) {
  for (size_t at = 0; at < text.size();) {
    const Character next = first_character(text.substr(at));
    f(next.code, at);
    at += next.bytes;
  }
}

bool is_space(char32_t code);        // the property White_Space
bool is_word(char32_t code);         // \w of regular expressions in Rust
bool is_numeric(char32_t code);      // categories N
bool is_punctuation(char32_t code);  // ASCII's, and categories P
bool is_mark(char32_t code);         // categories M
bool is_nonspacing_mark(char32_t code);
bool is_control(char32_t code);    // categories Cc, Cf, Co
bool is_ideograph(char32_t code);  // of Chinese, as BERT has it

enum class Normalization { kNFC, kNFD, kNFKC, kNFKD };
std::string normalized(std::string_view text, Normalization form);
std::string lowercase(std::string_view text);
std::string uppercase(std::string_view text);

// How many bytes at the start of a text that is not empty are a character as people see it (a grapheme cluster).
size_t first_grapheme(std::string_view text);

}  // namespace onnx_train
