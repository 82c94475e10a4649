// Adds the user's loss to the entry point "step", computed from the training values, and creates "evaluate" with the
// same loss, computed from the inference values. A pass on a model that one caller owns; throws Error for a loss that
// does not fit.
//
// New inputs: targets of the loss that are not values of the model; `labels` (or `labels_<prediction>`: see
// loss_resolution.h) if the expression names none. Class indices are int64 with the prediction's shape without the
// class axis; other targets are floats of the prediction's shape; both with its symbolic dimensions. Outputs: `loss`, a
// float scalar, and, for the first loss over class indices, `accuracy`, a float scalar: the fraction of positions,
// except ignored ones, where the label is the class with the largest prediction.
//
// A loss that is a model of its own adds its nodes in the place of the expression's (loss_model.h).
//
// Beside a mean stands what it is over, an output of its own, by which batches are combined: `loss_count`, the labels
// that count (or the sum of their weights, the elements, the samples), and `accuracy_count`. A mean over nothing is 0.
// A loss that sums has no count, and terms with different counts have one each (roles.h).
//
// Metadata: onnx_train.loss is the expression with defaults filled in (names, class axis), or the loss model's name;
// onnx_train.mean_over says what the means of the loss are over; onnx_train.outputs tells for the output of each role
// how to combine batches: {"loss": "mean", "loss_count": "sum", "grad_norm": "last"}.
#pragma once

#include <map>
#include <string>

#include "onnx_passes/loss/pairs.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

// `make_reference` is for a loss over pairs.
Pass loss(const BuildOptions& options, MakeReference make_reference = nullptr);

// The inputs that the loss of a training model takes for probabilities, and the name of the loss that does.
std::map<std::string, std::string> probability_inputs(const Model& model);

}  // namespace onnx_train
