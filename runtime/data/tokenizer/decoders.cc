#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/step_table.h"
#include "runtime/data/tokenizer/steps.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;
using Texts = std::vector<std::string>;

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size())
    text->replace(at, from.size(), to);
}

std::string joined(const Texts& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

void bytes_to_text(Texts* tokens) {
  std::string bytes;
  for (const std::string& token : *tokens) bytes += bytes_of_characters(token);
  *tokens = {repaired(bytes)};
}

Decoder spaces_of_marks(const Json& json) {
  const std::string mark = json.at("replacement");
  const Json adds = json.value("add_prefix_space", Json());
  const bool prepends = json.value("prepend_scheme", "always") != "never" && !(adds.is_boolean() && !adds.get<bool>());
  if (mark.empty()) fail("'replacement' of Metaspace is empty");
  return [=](Texts* tokens) {
    for (std::string& token : *tokens) replace_all(&token, mark, prepends && &token == tokens->data() ? "" : " ");
  };
}

// Spaces that are no part of English text before signs and shortened words.
void clean_up(std::string* text) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kChanges) replace_all(text, from, to);
}

Decoder words_of_pieces(const Json& json) {
  const std::string prefix = json.at("prefix");
  const bool cleans = json.at("cleanup");
  return [=](Texts* tokens) {
    for (std::string& token : *tokens) {
      if (&token != tokens->data()) {
        token = token.starts_with(prefix) ? token.substr(prefix.size()) : concat(" ", token);
      }
      if (cleans) clean_up(&token);
    }
  };
}

// The byte of "<0x61>"; -1 for other tokens.
int byte_of(const std::string& token) {
  constexpr size_t kDigits = 3, kSize = 6;
  if (token.size() != kSize || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  const char *const begin = token.data() + kDigits, *const end = token.data() + kSize - 1;
  const auto [stop, error] = std::from_chars(begin, end, byte, 16);
  return error == std::errc() && stop == end && byte >= 0 ? byte : -1;
}

// Bytes that follow each other are a text, or each of them is U+FFFD.
void byte_fallback(Texts* tokens) {
  Texts texts;
  std::string bytes;
  const auto flush = [&] {
    if (!bytes.empty() && invalid_at(bytes) == std::string::npos)
      texts.push_back(bytes);
    else
      texts.insert(texts.end(), bytes.size(), "\xEF\xBF\xBD");
    bytes.clear();
  };
  for (const std::string& token : *tokens) {
    const int byte = byte_of(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    texts.push_back(token);
  }
  flush();
  *tokens = std::move(texts);
}

Decoder strip_texts(const Json& json) {
  const std::string content = json.at("content");
  const int64_t start = json.at("start"), stop = json.at("stop");
  if (content.empty()) fail("'content' of Strip is empty");
  return [=](Texts* tokens) {
    for (std::string& token : *tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
      token = std::string(rest);
    }
  };
}

Decoder replace_in_texts(const Json& json) {
  const TextPattern pattern = pattern_of(json);
  const std::string content = json.at("content");
  return [=](Texts* tokens) {
    for (std::string& token : *tokens) {
      std::string replaced;
      pattern.for_each(token, [&](const TextMatch& part) {
        replaced += part.is_match ? std::string_view(content)
                                  : std::string_view(token).substr(part.begin, part.end - part.begin);
      });
      token = std::move(replaced);
    }
  };
}

Decoder ends_of_words(const Json& json) {
  const std::string suffix = json.value("suffix", "</w>");
  if (suffix.empty()) fail("'suffix' of BPEDecoder is empty");
  return [suffix](Texts* tokens) {
    for (std::string& token : *tokens) replace_all(&token, suffix, &token == &tokens->back() ? "" : " ");
  };
}

constexpr TokenizerStep<Decoder> kDecoders[] = {
    {"ByteLevel", [](const Json&) -> Decoder { return bytes_to_text; }},
    {"Metaspace", spaces_of_marks},
    {"WordPiece", words_of_pieces},
    {"ByteFallback", [](const Json&) -> Decoder { return byte_fallback; }},
    {"Fuse", [](const Json&) -> Decoder { return [](Texts* tokens) { *tokens = {joined(*tokens)}; }; }},
    {"Strip", strip_texts},
    {"Replace", replace_in_texts},
    {"BPEDecoder", ends_of_words},
};

}  // namespace

std::vector<Decoder> decoders_of(const Json& json) {
  std::vector<Decoder> steps;
  add_steps(json, kDecoders, "decoder", "decoders", &steps);
  return steps;
}

}  // namespace onnx_train
