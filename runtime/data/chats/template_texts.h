// What filters and methods of a chat template share. Pure functions; any thread. They throw Error.
#pragma once

#include <string>
#include <string_view>

#include "runtime/data/chats/template_value.h"

namespace onnx_train::chats {

// The argument of this place or name, or `otherwise`.
Value argument(const Arguments& arguments, size_t place, std::string_view name, Value otherwise);
Value number(int64_t n);
Value boolean(bool b);

// Without the characters of a text at its ends, or without blanks if it is None.
std::string stripped(std::string_view text, const Value& characters, bool left, bool right);
// The first letter of the text is large, and that after each character for which `begins_word` holds; the others are
// small.
std::string capitalized(const std::string& text, bool (*begins_word)(char32_t));
std::string replaced(std::string text, const std::string& from, const std::string& to, int64_t most);
std::string joined(const Value& items, const std::string& between);
Value pairs_of(const Dict& dict);  // [[key, value], ...]

}  // namespace onnx_train::chats
