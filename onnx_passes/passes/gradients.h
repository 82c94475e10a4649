// Adds the backward pass to the entry point "step": a gradient, named grad/<weight> where that is free, for each weight
// to train that the loss depends on. EntryPoint::gradients lists them.
//
// Weights are what select_trainable leaves. One that no gradient reaches is not trained; its name goes into the
// metadata onnx_train.not_trained, a JSON list, unless the user froze it. Throws Error when no weight is left to train,
// and one that lists every node that cannot be differentiated.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass gradients(const BuildOptions& options);

}  // namespace onnx_train
