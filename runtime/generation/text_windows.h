// What a language model without a cache reads: the last tokens of each text, from the left, in a batch of one length.
// The caller owns it; one thread. Throws Error for a model that reads no texts.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/generation/logits.h"
#include "runtime/session/session.h"

namespace onnx_train {

class TextWindows {
 public:
  // `context`: how many tokens are read; 0: as many as the model's input has, else `usual`, and no more than its table
  // of positions.
  TextWindows(const Session& session, int64_t texts, int64_t context, int64_t usual);

  int64_t context() const { return context_; }
  int64_t rows() const { return rows_; }  // of the batch
  bool has_fixed_rows() const { return (*tokens_->type.dims)[0].known(); }
  // The place of a text's last token.
  int64_t last_of(const std::vector<int64_t>& text) const { return read_of(text) - 1; }
  // The inputs for the texts. Positions after the end of a text hold `padding`. Throws Error if the model takes what is
  // no part of a text.
  const TensorMap& of(const Texts& texts, int64_t padding);

 private:
  int64_t read_of(const std::vector<int64_t>& text) const;
  std::string names() const;

  std::vector<InputSpec> inputs_;
  const InputSpec* tokens_;
  int64_t rows_, fixed_ = 0, context_;
  TensorMap made_;
};

}  // namespace onnx_train
