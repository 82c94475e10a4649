// How nodes move the axes of tokens (token_axes.h), a rule for each kind of operator. Owned by a TokenFlow that is
// being made; one thread. Throws Error for a node that mixes tokens, or has no rule.
#pragma once

#include "onnx_passes/tokens/token_axes.h"

namespace onnx_train {

class TokenRules {
 public:
  explicit TokenRules(TokenFlow* flow) : flow_(*flow) {}

  // Sets the axes of the node's outputs. False if it reads no stream, or only the shape of one.
  bool follow(Node* node);

 private:
  [[noreturn]] void refuse(const Node& node, const std::string& why) const;
  TokenAxes elementwise(const Node& node) const;
  TokenAxes product(Node* node);
  TokenAxes attended(Node* node, const TokenAxes& a, const TokenAxes& b);
  TokenAxes view(const Node& node) const;
  TokenAxes reduction(const Node& node) const;
  TokenAxes pieces(const Node& node) const;
  TokenAxes gather(const Node& node) const;
  TokenAxes aligned_last(const Node& node) const;
  TokenAxes along(const Node& node, int64_t axis, int64_t rank) const;
  TokenAxes rule(Node* node);
  const TokenAxes& first_stream(const Node& node) const;

  TokenFlow& flow_;
};

}  // namespace onnx_train
