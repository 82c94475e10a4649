#include <array>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/step_table.h"
#include "runtime/data/tokenizer/steps.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

PreTokenizer split_by(const TextPattern& pattern, Behavior behavior, bool invert = false) {
  return [=](const Piece& piece, const OnPiece& each) {
    split_at(pattern, piece.text, behavior, invert, [&](size_t begin, size_t end) {
      each({piece.text.substr(begin, end - begin), piece.is_first && begin == 0});
    });
  };
}

PreTokenizer split(const Json& json) {
  return split_by(pattern_of(json), behavior_of(json.at("behavior")), json.at("invert"));
}

// Words and signs: Rust's \w+|[^\w\s]+, with its definition of \w.
PreTokenizer whitespace(const Json& /*json*/) {
  const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\xE2\x80\x8C\xE2\x80\x8D";  // and both joiners
  return split_by(TextPattern::regex(concat("[", word, "]+|[^", word, "\\s]+")), Behavior::kRemoved, /*invert=*/true);
}

PreTokenizer bert_words(const Json& /*json*/) {
  const TextPattern spaces = TextPattern::characters(is_space), signs = TextPattern::characters(is_punctuation);
  const PreTokenizer words = split_by(spaces, Behavior::kRemoved), parts = split_by(signs, Behavior::kIsolated);
  return [=](const Piece& piece, const OnPiece& each) { words(piece, [&](const Piece& word) { parts(word, each); }); };
}

PreTokenizer digits(const Json& json) {
  return split_by(TextPattern::characters(is_numeric),
                  json.at("individual_digits") ? Behavior::kIsolated : Behavior::kContiguous);
}

PreTokenizer punctuation(const Json& json) {
  return split_by(TextPattern::characters(is_punctuation), behavior_of(json.value("behavior", "Isolated")));
}

// One character, as a text.
std::string character_of(const Json& json, const char* field) {
  const std::string text = json.at(field);
  if (text.empty() || first_character(text).bytes != text.size()) fail("'", field, "' is no character: '", text, "'");
  return text;
}

PreTokenizer delimiter(const Json& json) {
  return split_by(TextPattern::text(character_of(json, "delimiter")), Behavior::kRemoved);
}

PreTokenizer fixed_length(const Json& json) {
  const int64_t length = json.value("length", 5);
  if (length < 1) fail("'length' of FixedLength is ", length);
  return [length](const Piece& piece, const OnPiece& each) {
    for (std::string_view rest = piece.text; !rest.empty();) {
      size_t end = 0;
      for (int64_t i = 0; i < length && end < rest.size(); ++i) end += first_character(rest.substr(end)).bytes;
      each({rest.substr(0, end), piece.is_first && rest.data() == piece.text.data()});
      rest.remove_prefix(end);
    }
  };
}

PreTokenizer byte_level(const Json& json) {
  const bool adds_space = json.at("add_prefix_space"), splits = json.value("use_regex", true);
  // GPT-2's: https://github.com/openai/gpt-2/blob/master/src/encoder.py
  const PreTokenizer words =
      split_by(TextPattern::regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
               Behavior::kIsolated);
  return [=](const Piece& piece, const OnPiece& each) {
    std::string spaced;
    Piece whole = piece;
    if (adds_space && !piece.text.starts_with(' ')) {
      spaced = concat(" ", piece.text);
      whole.text = spaced;
    }
    const auto write = [&](const Piece& word) {
      const std::string characters = byte_characters(word.text);
      each({characters, word.is_first});
    };
    splits ? words(whole, write) : write(whole);
  };
}

enum class Prepend { kAlways, kFirst, kNever };

Prepend prepend_of(const Json& json) {
  const std::string scheme = json.value("prepend_scheme", "always");
  const Json adds = json.value("add_prefix_space", Json());
  if (adds.is_boolean() && !adds.get<bool>()) return Prepend::kNever;
  if (scheme == "always") return Prepend::kAlways;
  if (scheme == "first") return Prepend::kFirst;
  if (scheme != "never") fail("the prepend_scheme '", scheme, "' of Metaspace is not known");
  return Prepend::kNever;
}

PreTokenizer metaspace(const Json& json) {
  const std::string mark = character_of(json, "replacement");
  const Prepend scheme = prepend_of(json);
  const Json splits = json.value("split", Json());
  const TextPattern space = TextPattern::text(" ");
  const PreTokenizer words = split_by(TextPattern::text(mark), Behavior::kMergedWithNext);
  return [=, is_split = splits.is_null() || splits.get<bool>()](const Piece& piece, const OnPiece& each) {
    std::string marked;
    space.for_each(piece.text, [&](const TextMatch& part) {
      marked += part.is_match ? std::string_view(mark) : piece.text.substr(part.begin, part.end - part.begin);
    });
    const bool prepends = scheme == Prepend::kAlways || (scheme == Prepend::kFirst && piece.is_first);
    if (prepends && !marked.starts_with(mark)) marked.insert(0, mark);
    const Piece whole = {marked, piece.is_first};
    is_split ? words(whole, each) : each(whole);
  };
}

constexpr TokenizerStep<PreTokenizer> kPreTokenizers[] = {
    {"ByteLevel", byte_level},
    {"Split", split},
    {"Metaspace", metaspace},
    {"Whitespace", whitespace},
    {"WhitespaceSplit", [](const Json&) { return split_by(TextPattern::characters(is_space), Behavior::kRemoved); }},
    {"BertPreTokenizer", bert_words},
    {"Digits", digits},
    {"Punctuation", punctuation},
    {"CharDelimiterSplit", delimiter},
    {"FixedLength", fixed_length},
};

// GPT-2's characters for bytes: those that are printed are themselves, the others follow 255.
struct ByteTable {
  std::array<std::string, 256> characters;
  std::unordered_map<char32_t, char> bytes;

  ByteTable() {
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool is_printed = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code = is_printed ? byte : next++;
      append(&characters[byte], code);
      bytes[code] = static_cast<char>(byte);
    }
  }
};

const ByteTable& byte_table() {
  static const ByteTable table;
  return table;
}

}  // namespace

std::string byte_characters(std::string_view bytes) {
  const ByteTable& table = byte_table();
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) text += table.characters[static_cast<unsigned char>(byte)];
  return text;
}

std::string bytes_of_characters(const std::string& token) {
  const ByteTable& table = byte_table();
  std::string bytes;
  bool is_of_bytes = true;
  for_each_character(token, [&](char32_t code, size_t) {
    const auto found = table.bytes.find(code);
    is_of_bytes = is_of_bytes && found != table.bytes.end();
    if (is_of_bytes) bytes += found->second;
  });
  return is_of_bytes ? bytes : token;
}

std::vector<PreTokenizer> pre_tokenizers_of(const Json& json) {
  std::vector<PreTokenizer> steps;
  add_steps(json, kPreTokenizers, "pre_tokenizer", "pretokenizers", &steps);
  return steps;
}

}  // namespace onnx_train
