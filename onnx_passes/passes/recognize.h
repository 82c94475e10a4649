// What exporters spell out becomes one node again, before the gradients are made, so that forward and backward are one
// node each: Gelu in its spellings, LayerNormalization, Softmax and the like (the rows are in recognize_*.cc).
//
// The inference graph is rewritten, too, into standard operators which compute the same within rounding; where they
// came after the model's opset (RMSNormalization, Swish), into functions of ours that mean the same. What is computed
// on the way is kept where anything else reads it, or the loss names it; then nothing is rewritten. What is not
// recognized stays as it is.
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
  std::vector<std::string> constants = {};  // values of the formula that may not be weights to train
};

// The operator, which ONNX has from opset `since` on; the function of ours of the same name in models before.
Var standard_or_ours(Builder& b, const char* op, int64_t since, const std::vector<Var>& inputs, const Attrs& attrs);

// Whether an attribute of type float holds `number` as precisely as tensors of this type.
bool is_attribute(double number, DType dtype);

// In order of preference. A new family adds its line here and in recognize.cc.
std::vector<Rewrite> activation_rewrites();     // recognize_activations.cc
std::vector<Rewrite> normalization_rewrites();  // recognize_normalization.cc
std::vector<Rewrite> product_rewrites();        // recognize_products.cc

}  // namespace onnx_train
