// Adds the backward pass to the entry point "step": `grad/<weight>` for each weight to train that the loss depends on.
//
// Weights are what select_trainable leaves. One that no gradient reaches is not trained; its name goes into the
// metadata onnx_train.not_trained, a JSON list, unless the user froze it. Throws Error when no weight is left to train,
// and one that lists every node that cannot be differentiated.
#pragma once

#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass gradients(const BuildOptions& options);

// The weights that `entry` has gradients for, in the order of the graph: initializers `w` of the inference graph with
// a value `grad/w` in the algorithm.
std::vector<Value*> trained_weights(const Model& model, const EntryPoint& entry);

}  // namespace onnx_train
