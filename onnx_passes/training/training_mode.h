// Training mode: batch normalization uses and updates batch statistics, and dropout is active. This pass creates the
// entry point "step" and adds to its algorithm the training version of every node that computes something else in
// training and of every node that depends on one; the version of a value `v` is named `train/v`. Earlier values are
// shared with the inference graph. The summary of what frozen_statistics.h decides is in the metadata
// onnx_train.batch_norm. One caller owns the model; throws Error.
//
//   BatchNormalization   -> onnx_train.BatchNormalizationTrain; running mean and variance become state. Not those that
//                           keep their statistics
//   Dropout              -> onnx_train.Dropout with a stream of its own; the key is the state state/random_key
//   RandomNormal, ...    -> functions of the same key (functions/random_operators.h), in Mode::kFrozen, too
//
// The inference graph itself stays in inference form: batch norm with its running statistics, no dropout.
#pragma once

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {

Pass training_mode(const BuildOptions& options);

// The random operators that a loss has brought into "step" draw from the key, too.
Pass random_numbers(const BuildOptions& options);

// "train", "frozen" or "preserve". Throws Error for another name.
Mode parse_mode(const std::string& name);
const char* name(Mode mode);

// Converts the graph to inference form, including subgraphs, for `predict` and for plans of forward models. A model
// exported in training mode then computes what its module computes in evaluation mode. The training versions of outputs
// in `training`, if it is given, become those of the values that take their places.
void to_inference(Graph& graph, EntryPoint* training = nullptr);

}  // namespace onnx_train
