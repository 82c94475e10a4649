// Adds the loss that the user asked for to the entry point "step", on the training values, and makes "evaluate": the
// same loss on the inference values.
//
// New inputs: the loss's targets that are no values of the model, `labels` (or `labels_<prediction>`: see
// loss_resolution.h) where the expression names none. Class indices are int64 of the prediction's shape without the
// class axis, other targets are floats of the prediction's shape, both with its symbolic dimensions. Outputs: `loss`, a
// float scalar, and `accuracy`, a float scalar, for the first loss over class indices: the fraction of positions, not
// counting ignored ones, where the class with the largest prediction is the label.
//
// Metadata: onnx_train.loss is the expression with what was left open filled in (names, class axis);
// onnx_train.outputs says for the output of each role how it joins over batches: {"loss": "mean", "accuracy": "mean",
// "grad_norm": "last"}.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass loss(const BuildOptions& options);

}  // namespace onnx_train
