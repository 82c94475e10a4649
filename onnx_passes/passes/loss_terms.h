// One term of a loss expression: its open ends closed against the model, then built as nodes. Used by the loss pass.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/passes/loss_expression.h"

namespace onnx_train {

// Fills in what the user left open: the prediction (the model's first float output), the target's name, the class
// axis. Throws Error for names that the model does not have and for predictions that do not fit the loss; `text` is the
// whole expression, for messages.
void resolve(LossTerm* term, const Graph& graph, const std::string& text);

// A resolved term as an expression: "cross_entropy(logits, labels, axis=1)".
std::string to_string(const LossTerm& term);

// Builds resolved terms into one entry point's algorithm.
class LossBuilder {
 public:
  // `version` maps a value of the inference graph to the one that the entry point reads.
  LossBuilder(Builder* builder, std::function<Value*(Value*)> version) : b_(*builder), version_(std::move(version)) {}

  struct Result {
    Var loss;      // a scalar
    Var accuracy;  // a float scalar, for losses over class indices
  };
  Result build(const LossTerm& term);

 private:
  Var read(const std::string& name);
  // The value of that name, of the model or an input made by an earlier term, or a new input.
  Var read_or_add(const std::string& name, DType dtype, const Dims& dims);
  Var optional_weight(const LossTerm& term, const char* option, DType dtype, const Dims& dims);

  Result cross_entropy(const LossTerm& term);
  Var probability_cross_entropy(const LossTerm& term, Var logits, Var target);
  Result nll(const LossTerm& term);
  Var bce_with_logits(const LossTerm& term);
  Var distance(const LossTerm& term);  // mse, l1, huber
  Var accuracy(const LossTerm& term, Var prediction, Var labels);

  Builder& b_;
  std::function<Value*(Value*)> version_;
};

}  // namespace onnx_train
