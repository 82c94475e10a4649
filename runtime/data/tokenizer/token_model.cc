#include "runtime/data/tokenizer/token_model.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

struct ModelRow {
  std::string_view type;
  std::unique_ptr<TokenModel> (*make)(const nlohmann::json&);
};
constexpr std::array<ModelRow, 4> kModels = {
    {{"BPE", make_bpe}, {"WordPiece", make_word_piece}, {"Unigram", make_unigram}, {"WordLevel", make_word_level}}};

// Files of the first years have no type.
std::string type_of(const nlohmann::json& json) {
  if (json.contains("type")) return json.at("type");
  if (json.contains("merges")) return "BPE";
  if (json.contains("continuing_subword_prefix")) return "WordPiece";
  return json.contains("unk_id") ? "Unigram" : "WordLevel";
}

}  // namespace

Vocabulary::Vocabulary(const nlohmann::json& object) {
  constexpr int64_t kMost = (int64_t{1} << 32) - 1;
  if (!object.is_object()) fail("'vocab' of the model is no object");
  for (const auto& [text, number] : object.items()) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > kMost)
      fail("the token '", text, "' of 'vocab' has no number of 32 bits");
    add(text, number.get<int64_t>());
  }
}

void Vocabulary::add(const std::string& text, int64_t token) {
  numbers_.insert_or_assign(text, token);
  texts_.emplace(token, text);
}

std::optional<int64_t> Vocabulary::find(std::string_view text) const {
  const auto found = numbers_.find(text);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::text_of(int64_t token) const {
  const auto found = texts_.find(token);
  return found == texts_.end() ? nullptr : &found->second;
}

int64_t Vocabulary::largest() const {
  int64_t largest = -1;
  for (const auto& [token, text] : texts_) largest = std::max(largest, token);
  return largest;
}

int64_t Vocabulary::at(const std::string& text, const char* what) const {
  const auto token = find(text);
  if (!token) fail(what, " '", text, "' is not in the vocabulary");
  return *token;
}

bool TokenModel::add_bytes(std::string_view text, std::vector<int64_t>* tokens) const {
  std::vector<int64_t> found;
  for (const char c : text) {
    std::array<char, 8> name{};
    std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned>(static_cast<unsigned char>(c)));
    const auto token = vocabulary_.find(name.data());
    if (!token) return false;
    found.push_back(*token);
  }
  tokens->insert(tokens->end(), found.begin(), found.end());
  return true;
}

std::unique_ptr<TokenModel> token_model_of(const nlohmann::json& json) {
  const std::string type = type_of(json);
  for (const ModelRow& row : kModels) {
    if (type == row.type) return row.make(json);
  }
  fail("the model '", type, "' is not known here");
}

}  // namespace onnx_train
