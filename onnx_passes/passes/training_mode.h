// Where training differs from inference: batch norm uses and updates batch statistics, dropout is on. This pass makes
// the entry point "step" and, in Mode::kTrain, puts into its algorithm the training version of every BatchNormalization
// and Dropout and of every node behind one; the version of a value `v` is called `train/v`. What lies before is shared
// with the inference graph.
//
//   BatchNormalization   -> onnx_train.BatchNormalizationTrain; running mean and variance become state
//   Dropout              -> onnx_train.Dropout with a stream of its own; the key is the state state/random_key
//
// The inference graph itself is left in inference form: batch norm with its running statistics, no dropout.
#pragma once

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/passes/passes.h"

namespace onnx_train {

Pass training_mode(const BuildOptions& options);

// The inference form alone, subgraphs included: what `predict` and a plan of a forward model run. A model that was
// exported in training mode then computes what its module computes in evaluation mode.
void to_inference(Graph& graph);

}  // namespace onnx_train
