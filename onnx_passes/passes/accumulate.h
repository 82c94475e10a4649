// Cuts the entry point "step" in two at the gradients: "accumulate" computes the loss and adds its gradients to
// accumulators, "apply" has their mean (for a loss that sums over the batch: their sum), as `grad/<weight>`, for the
// optimizer to use. That equals one step on all samples where the micro-batches count the same number of samples.
//
// State: state/<weight>/grad, the sums; state/accumulated, how many micro-batches are in them (int64); state/step,
// the number of updates (int64). `accumulate` keeps in state/accumulated_for the step it has last seen: when that has
// changed since, the sums belong to an update that is done, and it starts over. So nobody resets anything.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass accumulate(const BuildOptions& options);

}  // namespace onnx_train
