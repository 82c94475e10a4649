// Splits the entry point "step" at the gradients: "accumulate" computes the loss of a batch and adds its gradients to
// accumulators; "apply" passes the gradient of the loss of all batches, as `grad/<weight>`, to the optimizer. A pass on
// a model that one caller owns; throws Error.
//
// A loss that is a mean counts something (roles.h): labels, elements, samples. The accumulators hold sums, count times
// gradient, and `apply` divides by the sum of counts, so the update is that of one step on all samples, whatever counts
// in each batch (Hugging Face's trainer: num_items_in_batch). Terms whose counts differ have accumulators of their own.
// With BuildOptions::mean_of_batches every batch counts the same, unless nothing counts in it. For a loss that sums,
// gradients are summed. The metadata onnx_train.accumulate says which it is.
//
// State: state/<weight>/grad, the sums; state/accumulated, what counts in them (float); state/step, the number of
// updates (int64); state/accumulating (bool), which `accumulate` sets and `apply` clears: where it is not set,
// `accumulate` starts new sums, so no explicit reset is needed. A second part of the loss has state/<weight>/grad_1 and
// state/accumulated_1. With loss scaling the sums are scaled; the scale changes in `apply` alone.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass accumulate(const BuildOptions& options);

}  // namespace onnx_train
