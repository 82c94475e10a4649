#include "tools/report/html_text.h"

#include <algorithm>

namespace onnx_train {
namespace {

// The length of the UTF-8 character at `i`; 0 if there is none.
size_t character_length(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : first == '\n' || first == '\t' ? 1 : 0;
  const size_t length = first >= 0xf0 && first < 0xf5 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (first >= 0xf5) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(k) & 0xc0U) != 0x80U) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool unassigned = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  return overlong || unassigned ? 0 : length;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string html;
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text, i);
    const std::string character = text.substr(i, std::max<size_t>(length, 1));
    i += character.size();
    html += length == 0         ? "\xef\xbf\xbd"
            : character == "&"  ? "&amp;"
            : character == "<"  ? "&lt;"
            : character == ">"  ? "&gt;"
            : character == "\"" ? "&quot;"
            : character == "'"  ? "&#39;"
                                : character;
  }
  return html;
}

}  // namespace onnx_train
