// The steps of a tokenizer, as its tokenizer.json describes them: texts are normalized, split into pieces, and pieces
// become tokens (token_model.h); tokens become texts again by decoders. Functions without state; any thread. What makes
// them throws Error for a type that is not known, and a JSON exception for a field of another form.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/tokenizer/pattern.h"

namespace onnx_train {

// A text on its way to tokens. `is_first`: no character of the text as it was given stands before it.
struct NormalizedText {
  std::string text;
  bool is_first;
};
using Normalizer = std::function<void(NormalizedText*)>;

// A piece refers to the text that a step before it holds while later steps run.
struct Piece {
  std::string_view text;
  bool is_first;
};
using OnPiece = std::function<void(const Piece&)>;
using PreTokenizer = std::function<void(const Piece&, const OnPiece&)>;

using Decoder = std::function<void(std::vector<std::string>*)>;

// What is put around the tokens of a text: parts, of which one or more are the text's own tokens.
struct TemplatePart {
  bool is_text;
  std::vector<int64_t> tokens;  // of other parts
};

// Null makes none.
std::vector<Normalizer> normalizers_of(const nlohmann::json& json);
std::vector<PreTokenizer> pre_tokenizers_of(const nlohmann::json& json);
std::vector<Decoder> decoders_of(const nlohmann::json& json);
std::vector<TemplatePart> template_of(const nlohmann::json& json);  // empty: the text's tokens alone

// The normalizer that SentencePiece compiles: a trie from texts to texts, in base64.
Normalizer charsmap_normalizer(const std::string& base64);

// "pattern": {"String": ...} or {"Regex": ...}
TextPattern pattern_of(const nlohmann::json& json);

// Bytes as the characters that ByteLevel writes for them, and back: a token with other characters stays as it is.
std::string byte_characters(std::string_view bytes);
std::string bytes_of_characters(const std::string& token);

}  // namespace onnx_train
