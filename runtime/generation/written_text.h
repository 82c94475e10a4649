// The text that tokens become while a model writes them: by a tokenizer, or as the bytes that they are. It gives whole
// characters alone, and ends with a stop, which may begin and end inside a token. The caller owns it and the tokenizer,
// which must outlive it; one thread. Throws Error for a token that is no byte, without a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {

class WrittenText {
 public:
  enum class Stops { kShown, kHidden };

  // `tokenizer`: null for bytes. `stops` are looked for in what is added, special tokens by their text; of them the
  // text ends with the one that is complete first. kHidden: it ends before it, and what may begin a stop waits.
  WrittenText(const Tokenizer* tokenizer, std::vector<int64_t> prompt, std::vector<std::string> stops, Stops shows);

  // Returns whether a stop is complete with the token; no more are added then.
  bool add(int64_t token);
  // What the text, which begins with the prompt, has more than at the call before; with `all` also the part of a
  // character at its end, and what waits.
  std::string more(bool all);
  // All of it.
  const std::string& text() const { return text_; }

 private:
  std::string text_of(bool skips_special) const;
  bool ends_with_stop();
  size_t ready() const;

  const Tokenizer* tokenizer_;
  std::vector<int64_t> tokens_;
  const std::vector<std::string> stops_;
  const Stops shows_;
  std::string prompt_;  // with special tokens
  std::string text_;
  bool is_stopped_ = false;
  size_t given_ = 0;  // bytes
};

}  // namespace onnx_train
