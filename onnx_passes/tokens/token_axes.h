// Where the tokens are in the values of a causal language model: what a cache of keys and values has to know. Each
// value of the main graph is
//
//   fixed        computed of weights and constants, and of the size of the batch
//   positional   computed of the number of tokens and of masks alone: positions, causal masks, sizes
//   stream       computed of the tokens. `tokens` is its axis of them. Scores have a second one, `keys`: what a token
//                reads of each other
//
// Two products let tokens read each other: scores = q kᵀ, which has an axis for the tokens of q and one for those of k,
// and scores v. All other nodes compute a token's rows of its rows alone; one that does not, or of which this is not
// known, is an Error that names it ("[Cache] ..."). Axes follow from the shapes that a copy of the graph has for
// numbers of tokens and texts that divide no other size. Where the file fixes the number of tokens, nothing is
// positional: what is fixed and has as many rows where it meets a stream has one for each position. The result is valid
// until the graph changes; one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

struct TokenAxes {
  enum Kind { kFixed, kPositional, kStream } kind = kFixed;
  int64_t tokens = -1, keys = -1;  // axes of a stream; keys: -1 if it has none
  // Whether the axis holds the tokens of all texts, as rows of a product; `before`: elements of the axes before tokens.
  bool merged = false;
  int64_t before = 1;
};

// The inputs of a language model by their types, and by the words of runtime/data/files/tokens.h in their names.
struct TextInputs {
  Value* tokens = nullptr;       // int[batch, tokens]
  std::vector<Value*> masks;     // [batch, tokens], "mask": which tokens are read
  int64_t length = 0;            // of tokens, where the file fixes it; else 0
  std::vector<Value*> by_token;  // int[batch, tokens], "position", "token_type"
};
// Throws Error for a model without tokens, with masks of a fixed number of them, or with other inputs.
TextInputs text_inputs(const Graph& graph);

class TokenFlow {
 public:
  TokenFlow(const Graph& graph, const TextInputs& inputs);

  const TokenAxes& of(const Value* value) const;
  bool is_stream(const Value* value) const { return value && of(value).kind == TokenAxes::kStream; }
  bool is_positional(const Value* value) const { return value && of(value).kind == TokenAxes::kPositional; }
  // Whether the axis of this value holds as many elements as there are tokens.
  bool is_of_tokens(const Value* value, int64_t axis) const;
  // The size of an axis: a number, as many for each text, or one that grows with the tokens.
  struct Size {
    enum Of { kNumber, kTexts, kTokens } of = kNumber;
    int64_t number = 0;  // the size, or what it is for one text
  };
  Size size_of(const Value* value, int64_t axis) const;
  int64_t rank(const Value* value) const { return static_cast<int64_t>(shape_of(value).size()); }
  Shape shape_of(const Value* value) const;  // for some number of tokens

  int64_t fixed_length() const { return fixed_length_; }  // 0: any number of tokens

  // Inputs of products, which hold the keys or values of all tokens.
  struct Read {
    Node* product;
    int input;
    bool is_value;  // not a key
  };
  const std::vector<Read>& reads() const { return reads_; }

 private:
  friend class TokenRules;
  struct Trial;  // shapes for a number of tokens
  void follow_positions(const Node& node);
  int64_t fixed_length_;
  std::vector<std::shared_ptr<Trial>> trials_;
  ValueTable<TokenAxes> axes_;
  std::vector<Read> reads_;
};

}  // namespace onnx_train
