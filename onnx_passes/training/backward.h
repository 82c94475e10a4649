// Adds the backward pass to the entry point "step": for each trained weight that the loss depends on a gradient, named
// grad/<weight> if that name is free. EntryPoint::gradients lists them. A pass on a model that one caller owns.
//
// select_trainable selects the weights. A weight that no gradient reaches is not trained; unless the user froze it, its
// name is added to the metadata onnx_train.not_trained, a JSON list. Throws Error if no weight is left to train, and
// Error that lists every node that cannot be differentiated.
#pragma once

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass gradients(const BuildOptions& options);

}  // namespace onnx_train
