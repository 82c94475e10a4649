// The grammar of --loss:
//
//   expression   term, then any number of `+ term` or `- term`
//   term         [number *] loss
//   loss         name of a loss [(prediction [, target] [, option=value ...])]
//                or an output of the model that already is the loss; a name in quotes is always an output
//   name         letters, digits, `_` and `.`, or any text in single or double quotes, where the quote itself is
//                written twice: 'it''s', "say ""x"""
//
//   cross_entropy                                     the first output against the new input `labels`
//   cross_entropy(logits, labels, label_smoothing=0.1)
//   0.7*cross_entropy(logits, labels) + 0.3*mse('/aux/out', target)
//
// A target that is no value of the model becomes an input. The losses are PyTorch's functions of the same name:
//
//   cross_entropy     axis, ignore_index, label_smoothing, weight (a name), probabilities (targets are probabilities
//                     of the logits' shape instead of class indices), reduction
//   nll               axis, ignore_index, weight, reduction        predictions are log-probabilities
//   bce_with_logits   weight, pos_weight (names), reduction
//   mse, l1           reduction
//   huber             delta, reduction
//
// reduction is mean (the default) or sum. Plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/loss/expression.h"

namespace onnx_train {

struct LossTerm {
  double weight = 1;
  Word loss;  // one of the names above, or an output of the model
  bool is_output = false;
  Arguments arguments;
};

// Throws Error that names the column.
std::vector<LossTerm> parse_loss(const std::string& text);

// The names of the losses, in the order of the table above.
std::vector<std::string> loss_names();

}  // namespace onnx_train
