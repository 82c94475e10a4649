// SentencePiece's compiled rules: the bytes of a trie, then the trie, a double array (Darts-clone), then texts that end
// with a 0. A rule is for a short character as people see it, or else for each code point of it;
// https://github.com/google/sentencepiece/blob/master/doc/normalization.md
#include <cstdint>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/steps.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

std::string decoded_base64(const std::string& text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) fail("'precompiled_charsmap' is no base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return bytes;
}

class Charsmap {
 public:
  explicit Charsmap(const std::string& bytes) {
    uint32_t trie_bytes = 0;
    if (bytes.size() < sizeof trie_bytes) fail("'precompiled_charsmap' is cut off");
    std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
    if (trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > bytes.size() - sizeof trie_bytes)
      fail("'precompiled_charsmap' is cut off: its trie has ", trie_bytes, " bytes");
    units_.resize(trie_bytes / sizeof(uint32_t));
    if (!units_.empty()) std::memcpy(units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
    texts_ = bytes.substr(sizeof trie_bytes + trie_bytes);
    if (invalid_at(texts_) != std::string::npos) fail("'precompiled_charsmap' holds texts that are no UTF-8");
  }

  // What stands for the shortest beginning of `part` that has a rule; null if none has.
  const char* rule_for(std::string_view part) const {
    size_t node = 0;
    uint32_t unit = unit_at(node);
    node ^= offset_of(unit);
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) break;
      node ^= byte;
      unit = unit_at(node);
      if ((unit & (1u << 31 | 0xFF)) != byte) return nullptr;
      node ^= offset_of(unit);
      if ((unit >> 8 & 1) == 0) continue;  // no rule ends here
      const size_t at = unit_at(node) & ((1u << 31) - 1);
      return at < texts_.size() ? texts_.c_str() + at : nullptr;
    }
    return nullptr;
  }

 private:
  uint32_t unit_at(size_t node) const { return node < units_.size() ? units_[node] : uint32_t{1} << 31; }
  static size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace

Normalizer charsmap_normalizer(const std::string& base64) {
  constexpr size_t kShort = 6;
  auto rules = std::make_shared<const Charsmap>(decoded_base64(base64));
  return [rules](NormalizedText* text) {
    std::string made;
    std::string_view rest = text->text;
    while (!rest.empty()) {
      const std::string_view grapheme = rest.substr(0, first_grapheme(rest));
      rest.remove_prefix(grapheme.size());
      const char* const whole = grapheme.size() < kShort ? rules->rule_for(grapheme) : nullptr;
      if (whole) {
        made += whole;
        continue;
      }
      for_each_character(grapheme, [&](char32_t /*code*/, size_t at) {
        const std::string_view part = grapheme.substr(at, first_character(grapheme.substr(at)).bytes);
        const char* const rule = rules->rule_for(part);
        rule ? made += rule : made += part;
      });
    }
    text->text = std::move(made);
  };
}

}  // namespace onnx_train
