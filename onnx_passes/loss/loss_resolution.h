// Resolves a loss expression against the model: fills in the prediction (probabilities.h: default_prediction), the
// class axis and the names of targets, and rejects what does not fit. Used by the loss pass before any node is built;
// any thread.
//
// A target has the prediction's shape, without the class axis if it holds class indices. A name that the model does not
// have becomes an input of that type. A value of the model must already have that shape: only weights
// of elements and gaussian_nll's variance broadcast. Sizes known only from the data are compared when a plan is made
// (loss_terms.h).
//
// Open targets are named `labels` if all of them have one type, else `labels_<prediction>`; where a loss has several,
// by the arguments of its row. A number is appended if a value inside the model has that name.
#pragma once

#include <vector>

#include "onnx_passes/loss/loss_expression.h"
#include "onnx_passes/loss/loss_targets.h"

namespace onnx_train {

// The reader has the whole expression, for messages. Throws Error that names the column.
void resolve(std::vector<LossTerm>* terms, const LossScope& scope, const ExpressionReader& reader);

}  // namespace onnx_train
