// What exporters spell out becomes one node again, before the gradients are made, so that forward and backward are one
// node each: Gelu in its spellings, LayerNormalization, Softmax and the like (the rows are in recognize_*.cc).
//
// The inference graph is rewritten, too: only into standard operators of the model's own opset, which compute the same
// within rounding. What is computed on the way is kept where anything else reads it, or the loss names it; then nothing
// is rewritten. What is not recognized stays as it is.
#pragma once

#include "onnx_passes/ir/builder.h"
#include "onnx_passes/passes/passes.h"
#include "onnx_passes/passes/pattern.h"

namespace onnx_train {

Pass recognize(const BuildOptions& options);

// A row: a formula, and what takes the place of `last`, the node that computes its result.
struct Rewrite {
  const char* name;
  Pattern formula;
  // Returns Var() when the match is none after all (shapes that do not fit).
  std::function<Var(Builder&, const Match&, const Node& last)> replacement;
  int64_t since = 21;  // the first opset that has the operator
};

// Whether an attribute of type float holds `number` as precisely as tensors of this type.
bool is_attribute(double number, DType dtype);

// In order of preference. A new family adds its line here and in recognize.cc.
std::vector<Rewrite> activation_rewrites();     // recognize_activations.cc
std::vector<Rewrite> normalization_rewrites();  // recognize_normalization.cc
std::vector<Rewrite> product_rewrites();        // recognize_products.cc

}  // namespace onnx_train
