// One term of a loss expression that is resolved (loss_resolution.h), built as nodes. Used by the loss pass; any
// thread.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/passes/loss_expression.h"

namespace onnx_train {

// An option of the term, null where it is not given.
const Option* find_option(const LossTerm& term, const std::string& key);
// Its number, `otherwise` where it is not given.
double number_of(const LossTerm& term, const std::string& key, double otherwise);
int64_t integer_of(const LossTerm& term, const std::string& key, int64_t otherwise);

// A resolved term as an expression: "cross_entropy(logits, labels, axis=1)".
std::string to_string(const LossTerm& term);

// Builds resolved terms into one entry point's algorithm.
class LossBuilder {
 public:
  // `version` maps a value of the inference graph to the one that the entry point reads.
  LossBuilder(Builder* builder, const Graph& inference, std::function<Value*(Value*)> version);

  struct Result {
    Var loss;      // a scalar
    Var accuracy;  // a float scalar, for losses over class indices
  };
  Result build(const LossTerm& term);

 private:
  Var read(const std::string& name);
  // The value of that name, of the model or an input made by an earlier term, or a new input.
  Var read_or_add(const std::string& name, DType dtype, const Dims& dims);
  // The target: an input of the prediction's sizes along `axes`, or a tensor of the model with these sizes.
  Var target(const LossTerm& term, Var prediction, DType dtype, const std::vector<int64_t>& axes);
  // The weight of each class; no value where the term has none. And that of each element, which may broadcast.
  Var class_weight(const LossTerm& term, Var prediction);
  Var element_weight(const LossTerm& term, const char* option, Var prediction, const Dims& dims);
  // x, whose sizes are those of the prediction along `axes`: a plan is refused for others, where the types leave that
  // open. A size of 1 would broadcast silently.
  Var with_sizes(const std::string& name, Var x, Var prediction, const std::vector<int64_t>& axes);
  bool certainly_equal(const Dim& a, const Dim& b) const;

  Result cross_entropy(const LossTerm& term);
  Var probability_cross_entropy(const LossTerm& term, Var logits, Var target);
  Result nll(const LossTerm& term);
  Var bce_with_logits(const LossTerm& term);
  Var distance(const LossTerm& term);  // mse, l1, huber
  Var accuracy(const LossTerm& term, Var prediction, Var labels);

  Builder& b_;
  std::function<Value*(Value*)> version_;
  std::set<std::string> set_by_inputs_;  // symbols
};

}  // namespace onnx_train
