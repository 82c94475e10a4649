// Weights apart from what inference reads. With an average (--ema, and optimizers that have one), a weight of the graph
// holds the average: predict, evaluate, export, checkpoints and every runtime that opens the file read it as they read
// any weight. Training goes on from a state of its own, raw/<weight>, of the role kRaw.
//
// A pass' helper; the caller owns the model; one thread.
#pragma once

#include <unordered_map>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// weight -> raw weight
using RawWeights = std::unordered_map<const Value*, Value*>;

// Adds a raw weight for each of `weights`, with the same value, and makes all entry points but `evaluate` read these:
// nodes of the inference graph that depend on a weight are copied to the algorithm, as training versions.
RawWeights add_raw_weights(Model* model, const std::vector<Value*>& weights);

}  // namespace onnx_train
