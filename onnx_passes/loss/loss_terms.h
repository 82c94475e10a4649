// Builds the nodes of one resolved term of a loss expression (loss_resolution.h). Used by the loss pass, on its thread;
// throws Error.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/loss/loss_expression.h"

namespace onnx_train {

// An option of the term; null if absent.
const Option* find_option(const LossTerm& term, const std::string& key);
// Its number; `otherwise` if absent.
double number_of(const LossTerm& term, const std::string& key, double otherwise);
int64_t integer_of(const LossTerm& term, const std::string& key, int64_t otherwise);

// A resolved term as an expression: "cross_entropy(logits, labels, axis=1)".
std::string to_string(const LossTerm& term);

// Builds resolved terms in the algorithm of one entry point.
class LossBuilder {
 public:
  // `version` maps a value of the inference graph to the value that the entry point reads.
  LossBuilder(Builder* builder, const Graph& inference, std::function<Value*(Value*)> version);

  struct Result {
    Var loss;               // a scalar
    Var count = {};         // a float scalar: what the loss is a mean over; absent if it sums
    std::string what = "";  // counts, for people: "labels"; "" if it sums
    std::string key = "";   // terms with the same key have proportional counts, whatever the batch; "" if it sums
    Var accuracy = {};      // a float scalar, for losses over class indices
    Var accuracy_count = {};
  };
  Result build(const LossTerm& term);
  // A scalar that the model or a loss model computes: a mean over the samples, as far as one knows. Their number is the
  // size of the first axis of the first input of the algorithm, or else of the model, that has one.
  Result of_samples(Var loss);

 private:
  Var read(const std::string& name);
  // The value of that name (of the model, or an input added by an earlier term), or a new input.
  Var read_or_add(const std::string& name, DType dtype, const Dims& dims);
  // The target: a new input with the prediction's sizes along `axes`, or a tensor of the model with these sizes.
  Var target(const LossTerm& term, Var prediction, DType dtype, const std::vector<int64_t>& axes);
  // The weight of each class, if the term has one; and the weight of each element, which may broadcast.
  Var class_weight(const LossTerm& term, Var prediction);
  Var element_weight(const LossTerm& term, const char* option, Var prediction, const Dims& dims);
  // x, whose sizes must equal those of the prediction along `axes`. Where the types leave that open, a plan with other
  // sizes is rejected; a size of 1 would broadcast silently.
  Var with_sizes(const std::string& name, Var x, Var prediction, const std::vector<int64_t>& axes);
  bool certainly_equal(const Dim& a, const Dim& b) const;

  Result cross_entropy(const LossTerm& term);
  Result probability_cross_entropy(const LossTerm& term, Var logits, Var target);
  Result nll(const LossTerm& term);
  Result bce_with_logits(const LossTerm& term);
  Result distance(const LossTerm& term);  // mse, l1, huber
  // Reduces the loss of every element, or of every position, along `axes` of the prediction.
  Result reduced(const LossTerm& term, Var losses, Var prediction, const std::vector<int64_t>& axes);
  // Adds what counts, and the accuracy, to a loss over class indices.
  Result of_labels(const LossTerm& term, Var loss, Var prediction, Var labels, Var weight);

  Builder& b_;
  const Graph& inference_;
  std::function<Value*(Value*)> version_;
  std::set<std::string> set_by_inputs_;  // symbols
};

}  // namespace onnx_train
