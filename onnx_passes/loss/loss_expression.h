// The grammar of --loss:
//
//   expression   term, then any number of `+ term` or `- term`
//   term         [number *] loss
//   loss         name of a loss [(prediction [, prediction ...] [, target ...] [, option=value ...])]
//                or an output of the model that already is the loss; a name in quotes is always an output
//   value        a number, true, false, a name, or a list of numbers: [1, 2, 0.5]
//   name         letters, digits, `_` and `.`, or any text in single or double quotes, where the quote itself is
//                written twice: 'it''s', "say ""x"""
//
//   cross_entropy                                     the first output against the new input `labels`
//   cross_entropy(logits, labels, label_smoothing=0.1)
//   0.7*cross_entropy(logits, labels) + 0.3*mse('/aux/out', target)
//
// A target that is no value of the model becomes an input. The losses, their arguments and options are the rows of
// loss_table.h; docs/losses.md explains them. Plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/text/expression.h"

namespace onnx_train {

struct LossRow;

struct LossTerm {
  double weight = 1;
  Word loss;  // a row of the table, or an output of the model
  bool is_output = false;
  Arguments arguments;
  const LossRow* row = nullptr;  // of the table of losses, or of metrics (metrics/metric_table.h); null for an output
};

// Throws Error that names the column.
std::vector<LossTerm> parse_loss(const std::string& text);

// Reads the arguments of a call of the term's row, if "(" comes next, and checks its options.
void read_call(ExpressionReader* reader, LossTerm* term);

// The names of the losses, in the order of the table.
std::vector<std::string> loss_names();

// An option of the term; null if absent.
const Option* find_option(const LossTerm& term, const std::string& key);
// An option that is a number, or what the loss's row has in its place.
double number_of(const LossTerm& term, const std::string& key);
int64_t integer_of(const LossTerm& term, const std::string& key);
bool flag_of(const LossTerm& term, const std::string& key);
std::string reduction_of(const LossTerm& term);  // mean, sum, batchmean
// An option that is one of several words: the first unless another is given.
std::string choice_of(const LossTerm& term, const std::string& key);

}  // namespace onnx_train
