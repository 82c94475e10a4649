// Replaces formulas that exporters write with elementary operators by single nodes, before gradients are added, so that
// forward and backward are one node each: Gelu, LayerNormalization, Softmax and others (the rows are in
// recognize_*.cc).
//
// The inference graph is rewritten as well, to standard operators that compute the same within rounding, or, if they
// are newer than the model's opset (RMSNormalization, Swish), to equivalent functions of ours. If another node or the
// loss reads an intermediate value, nothing is rewritten. Other formulas stay as they are. Runs on a model that one
// caller owns; the tables are immutable.
#pragma once

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/model/build_options.h"
#include "onnx_passes/recognize/pattern.h"

namespace onnx_train {

Pass recognize(const BuildOptions& options);

// A row: a formula, and the replacement of `last`, the node that computes its result.
struct Rewrite {
  const char* name;
  Pattern formula;
  // Returns Var() if the match does not apply after all (shapes do not fit).
  std::function<Var(Builder&, const Match&, const Node& last)> replacement;
  std::vector<std::string> constants = {};  // values of the formula that must not be trained weights
};

// The operator if the model's opset has it (from `since` on); otherwise our function of the same name.
Var standard_or_ours(Builder& b, const char* op, int64_t since, const std::vector<Var>& inputs, const Attrs& attrs);

// Whether a float attribute can hold `number` as precisely as tensors of this type.
bool is_attribute(double number, DType dtype);

// In order of preference. A new family adds a line here and in recognize.cc.
std::vector<Rewrite> activation_rewrites();     // recognize_activations.cc
std::vector<Rewrite> normalization_rewrites();  // recognize_normalization.cc
std::vector<Rewrite> product_rewrites();        // recognize_products.cc

}  // namespace onnx_train
