// Builds the nodes of the resolved terms of a loss expression (loss_resolution.h). Used by the loss pass, on its
// thread; throws Error.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/loss/loss_expression.h"

namespace onnx_train {

// A resolved term as an expression: "cross_entropy(logits, labels, axis=1)".
std::string to_string(const LossTerm& term);

std::string value_text(const Option& option);

struct LossResult {
  Var loss;               // a scalar
  Var count = {};         // a float scalar: what the loss is a mean over; absent if it sums
  std::string what = "";  // counts, for people: "labels"; "" if it sums
  std::string key = "";   // terms with the same key have proportional counts, whatever the batch; "" if it sums
  Var accuracy = {};      // a float scalar, for losses over class indices
  Var accuracy_count = {};
  std::vector<std::pair<std::string, Var>> metrics = {};  // scalars, means over the samples: rewards (pairs.h)
};

// Builds terms in the algorithm of one entry point.
class LossBuilder {
 public:
  // `version` maps a value of the inference graph to the value that the entry point reads.
  LossBuilder(Builder* builder, const Graph& inference, std::function<Value*(Value*)> version);

  LossResult build(const LossTerm& term);
  // A scalar that the model or a loss model computes: a mean over the samples, as far as one knows. Their number is the
  // size of the first axis of the first input of the algorithm, or else of the model, that has one.
  LossResult of_samples(Var loss);

 private:
  friend class TermBuilder;

  Var read(const std::string& name);
  // The value of that name (of the model, or an input added by an earlier term), or a new input.
  Var read_or_add(const std::string& name, DType dtype, const Dims& dims);
  // x, whose sizes must equal those of the prediction along `axes`; -1 stands for an axis of any size. Where the types
  // leave that open, a plan with other sizes is rejected; a size of 1 would broadcast silently.
  Var with_sizes(const std::string& name, Var x, Var prediction, const std::vector<int64_t>& axes);
  // x, which must broadcast to the prediction.
  Var broadcast(const std::string& name, Var x, Var prediction);
  bool certainly_equal(const Dim& a, const Dim& b) const;

  Builder& b_;
  const Graph& inference_;
  std::function<Value*(Value*)> version_;
  std::set<std::string> set_by_inputs_;  // symbols
};

// Two values of this text have sizes in a fixed proportion in every plan.
std::string proportions(Var x, const Dims& dims);
const Dims& dims_of(Var x);  // throws Error if the rank is not known
// The dimensions along `axes`; for -1 one named after `name`.
Dims chosen(const Dims& dims, const std::vector<int64_t>& axes, const std::string& name = "");

}  // namespace onnx_train
