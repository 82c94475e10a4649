// A tokenizer as Hugging Face's library writes it, tokenizer.json: texts to tokens, the same ones, and back. The steps
// are in steps.h, the model in token_model.h. Whoever opens one owns it; one thread at a time uses it. What is thrown
// is Error, which names the file, for a file that is not read, a type of step that is not known, a text that is no
// UTF-8, and a text for which the model has no token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/tokenizer/added_tokens.h"
#include "runtime/data/tokenizer/steps.h"
#include "runtime/data/tokenizer/token_model.h"

namespace onnx_train {

class Tokenizer {
 public:
  // A tokenizer.json, or the folder that holds it, as people download it. Truncation and padding that the file asks for
  // are left out: samples have the length that the model takes.
  explicit Tokenizer(const std::string& path);

  // Nothing is put around the text. Special tokens in it are found. Errors begin with `where` the text is from.
  std::vector<int64_t> encode(std::string_view text, const std::string& where);
  // With what the tokenizer puts around a text. Of a longer text the end is cut, so that there are `most` tokens at
  // most; `*is_cut` says whether.
  std::vector<int64_t> encode_sample(std::string_view text, const std::string& where, int64_t most, bool* is_cut);
  // Numbers without a token are left out, and special tokens if `skips_special`.
  std::string decode(const std::vector<int64_t>& tokens, bool skips_special = true) const;

  std::optional<int64_t> find(std::string_view token) const;
  // What tokenizer_config.json beside the file calls eos_token, if there is one.
  std::optional<int64_t> end() const { return end_; }
  // That, and what generation_config.json beside the file has as eos_token_id: a number, or several.
  const std::vector<int64_t>& ends() const { return ends_; }
  bool is_added(int64_t token) const { return added_.text_of(token) != nullptr; }  // no text by itself, "<|im_end|>"
  // [PAD] or <pad>, else 0.
  int64_t padding() const;
  int64_t largest() const { return largest_; }  // number of a token

  const std::string& path() const { return path_; }          // of the file
  const std::string& identity() const { return identity_; }  // "tokenizer.json 0123456789abcdef", of its bytes

 private:
  void read(const std::string& text);
  void find_ends();
  std::string normalized(const std::string& text, bool* is_first) const;
  void add_tokens(std::string_view text, std::vector<int64_t>* tokens);
  void add_pieces(const Piece& piece, size_t step, std::vector<int64_t>* tokens);

  std::string path_, identity_;
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  std::vector<Decoder> decoders_;
  std::vector<TemplatePart> template_;
  std::unique_ptr<TokenModel> model_;
  AddedTokens added_;
  std::optional<int64_t> end_;
  std::vector<int64_t> ends_;
  int64_t largest_ = -1;
};

}  // namespace onnx_train
