// Tokens of documents as they are made, one document after the other. The caller owns it; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/files/token_cache.h"

namespace onnx_train {

class DocumentBuffer {
 public:
  // A document, and the token that ends it if there is one.
  void add(const std::vector<int64_t>& tokens, std::optional<int64_t> end) {
    for (const int64_t token : tokens) tokens_->push_back(static_cast<uint32_t>(token));
    if (end) tokens_->push_back(static_cast<uint32_t>(*end));
    ends_.push_back(std::ssize(*tokens_));
  }
  // A conversation, and which of its tokens are parts of answers. A buffer holds either.
  void add(const std::vector<int64_t>& tokens, const std::vector<bool>& is_answer) {
    add(tokens, std::nullopt);
    answers_->insert(answers_->end(), is_answer.begin(), is_answer.end());
  }

  int64_t size() const { return std::ssize(*tokens_); }
  int64_t documents() const { return std::ssize(ends_); }
  // Shares its memory: nothing may be added afterwards.
  DocumentTokens result(const std::string& remark = "") const {
    DocumentTokens made{Tensor(DType::kUint32, {size()}, tokens_->data(), tokens_), Tensor::ints(ends_), {}, remark};
    if (!answers_->empty()) made.answers = Tensor(DType::kUint8, {size()}, answers_->data(), answers_);
    return made;
  }

 private:
  std::shared_ptr<std::vector<uint32_t>> tokens_ = std::make_shared<std::vector<uint32_t>>();
  std::shared_ptr<std::vector<uint8_t>> answers_ = std::make_shared<std::vector<uint8_t>>();
  std::vector<int64_t> ends_;
};

}  // namespace onnx_train
