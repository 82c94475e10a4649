#include "runtime/data/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/unicode.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kName = "tokenizer.json";

std::string file_of(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) fail_as(ErrorCode::kFile, "there is no tokenizer at ", path);
  if (!fs::is_directory(path, error)) return path;
  const fs::path file = fs::path(path) / kName;
  if (!fs::exists(file, error)) {
    fail_as(ErrorCode::kFile, "the folder ", path, " holds no ", kName,
            ", which AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes");
  }
  return file.string();
}

std::string contents(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file->data()), file->size()};
}

// Calls f, and lets what it throws begin with `where`.
template <typename F>
void naming(ErrorCode code, const std::string& where, const F& f) {
  try {
    f();
  } catch (const Json::exception& error) {
    fail_as(code, where, ": ", error.what());
  } catch (const Error& error) {
    fail_as(code, where, ": ", error.what());
  }
}

// Calls f with the object in a file of this name in the folder of `path`, if there is one.
template <typename F>
void json_beside(const std::string& path, const char* name, const F& f) {
  const std::string file = (fs::path(path).parent_path() / name).string();
  std::error_code error;
  if (!fs::exists(file, error)) return;
  naming(ErrorCode::kFile, "cannot read " + file, [&] {
    const Json json = Json::parse(contents(file));
    if (json.is_object()) f(json);
  });
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path) : path_(file_of(path)) {
  const std::string text = contents(path_);
  std::array<char, 17> hash{};
  std::snprintf(hash.data(), hash.size(), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  identity_ = concat(fs::path(path_).filename().string(), " ", hash.data());
  naming(ErrorCode::kFile, "cannot read the tokenizer " + path_, [&] { read(text); });
  find_ends();
}

void Tokenizer::read(const std::string& text) {
  const Json json = Json::parse(text);
  if (!json.is_object() || !json.contains("model")) fail("it has no 'model'");
  if (const Json version = json.value("version", Json("1.0")); version != "1.0")
    fail("its version is ", version.dump(), ", not 1.0");
  const auto part = [&](const char* name) { return json.contains(name) ? json.at(name) : Json(); };
  normalizers_ = normalizers_of(part("normalizer"));
  pre_tokenizers_ = pre_tokenizers_of(part("pre_tokenizer"));
  decoders_ = decoders_of(part("decoder"));
  template_ = template_of(part("post_processor"));
  model_ = token_model_of(json.at("model"));
  added_ = AddedTokens(part("added_tokens"), model_->vocabulary(), [this](const std::string& content) {
    bool is_first = true;
    return normalized(content, &is_first);
  });
  largest_ = std::max(model_->vocabulary().largest(), added_.largest());
}

void Tokenizer::find_ends() {
  json_beside(path_, "tokenizer_config.json", [&](const Json& json) {
    Json end = json.value("eos_token", Json());
    if (end.is_object()) end = end.value("content", Json());
    if (end.is_string()) end_ = find(end.get<std::string>());
  });
  if (end_) ends_.push_back(*end_);
  json_beside(path_, "generation_config.json", [&](const Json& json) {
    Json ends = json.value("eos_token_id", Json());
    if (ends.is_number()) ends = Json::array({ends});
    for (const Json& end : ends) {
      if (!end.is_number_integer()) fail("'eos_token_id' is ", end.dump(), ", no number of a token");
      if (std::ranges::find(ends_, end.get<int64_t>()) == ends_.end()) ends_.push_back(end);
    }
  });
}

std::string Tokenizer::normalized(const std::string& text, bool* is_first) const {
  NormalizedText made{text, *is_first};
  for (const Normalizer& step : normalizers_) step(&made);
  *is_first = made.is_first;
  return std::move(made.text);
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, const std::string& where) {
  std::vector<int64_t> tokens;
  naming(ErrorCode::kData, concat(where, " has no tokens of ", path_), [&] { add_tokens(text, &tokens); });
  return tokens;
}

void Tokenizer::add_tokens(std::string_view text, std::vector<int64_t>* tokens) {
  if (const size_t at = invalid_at(text); at != std::string_view::npos) fail("its byte ", at, " is no UTF-8");
  const auto add = [&](int64_t token) { tokens->push_back(token); };
  added_.split(AddedTokens::In::kGiven, text, add, [&](size_t begin, size_t end) {
    bool is_first = begin == 0;
    const std::string part = normalized(std::string(text.substr(begin, end - begin)), &is_first);
    added_.split(AddedTokens::In::kNormalized, part, add, [&](size_t from, size_t to) {
      add_pieces({std::string_view(part).substr(from, to - from), is_first && from == 0}, 0, tokens);
    });
  });
}

// The steps from `step` on, then the model.
void Tokenizer::add_pieces(const Piece& piece, size_t step, std::vector<int64_t>* tokens) {
  if (piece.text.empty()) return;
  if (step == pre_tokenizers_.size()) return model_->tokenize(piece.text, tokens);
  pre_tokenizers_[step](piece, [&](const Piece& part) { add_pieces(part, step + 1, tokens); });
}

std::vector<int64_t> Tokenizer::encode_sample(std::string_view text, const std::string& where, int64_t most,
                                              bool* is_cut) {
  std::vector<int64_t> own = encode(text, where);
  int64_t around = 0;
  for (const TemplatePart& part : template_) around += std::ssize(part.tokens);
  if (around > most)
    fail_as(ErrorCode::kData, path_, " puts ", around, " tokens around a text, and a sample has ", most);
  *is_cut = std::ssize(own) > most - around;
  if (*is_cut) own.resize(static_cast<size_t>(most - around));
  if (template_.empty()) return own;
  std::vector<int64_t> tokens;
  for (const TemplatePart& part : template_) {
    const std::vector<int64_t>& added = part.is_text ? own : part.tokens;
    tokens.insert(tokens.end(), added.begin(), added.end());
  }
  return tokens;
}

std::string Tokenizer::decode(const std::vector<int64_t>& tokens, bool skips_special) const {
  std::vector<std::string> texts;
  for (const int64_t token : tokens) {
    const std::string* text = added_.text_of(token);
    if (!text) text = model_->vocabulary().text_of(token);
    if (text && !(skips_special && added_.is_special(*text))) texts.push_back(*text);
  }
  std::string all;
  if (decoders_.empty()) {
    for (const std::string& text : texts) all += concat(&text == texts.data() ? "" : " ", text);
    return all;
  }
  for (const Decoder& step : decoders_) step(&texts);
  for (const std::string& text : texts) all += text;
  return all;
}

std::optional<int64_t> Tokenizer::find(std::string_view token) const {
  const auto added = added_.find(token);
  return added ? added : model_->vocabulary().find(token);
}

int64_t Tokenizer::padding() const {
  for (const char* name : {"[PAD]", "<pad>"}) {
    if (const auto token = find(name)) return *token;
  }
  return 0;
}

}  // namespace onnx_train
