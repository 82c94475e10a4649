// Splits the entry point "step" at the gradients: "accumulate" computes the loss and adds its gradients to
// accumulators; "apply" passes their mean (for a loss that sums over the batch: their sum), as `grad/<weight>`, to the
// optimizer. This equals one step on all samples if the micro-batches count equally many samples. A pass on a model
// that one caller owns; throws Error.
//
// State: state/<weight>/grad, the sums; state/accumulated, the number of micro-batches in them (int64); state/step, the
// number of updates (int64). `accumulate` stores the step it has last seen in state/accumulated_for: if the step has
// changed since, the sums belong to a completed update, and it starts new sums. So no explicit reset is needed.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass accumulate(const BuildOptions& options);

}  // namespace onnx_train
