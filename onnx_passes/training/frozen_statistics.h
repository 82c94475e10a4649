// Which batch normalizations keep their running statistics in training, and normalize with them, as in inference. A
// pure function of a model that must not change meanwhile; any thread.
#pragma once

#include <string>
#include <unordered_set>

#include "onnx_passes/model/build_options.h"

namespace onnx_train {

struct BatchNormStatistics {
  std::unordered_set<const Node*> trained;  // batch normalizations that use and update batch statistics
  std::string summary;                      // how many others there are, and why; "" if that is as one expects
};

// Decides for the batch normalizations of the graph and its subgraphs. With Mode::kTrain one keeps its statistics if
//
//   the model computes them, or they are those of single samples (batch_statistics.h); or
//   --freeze names one of them; or
//   it has weights, scale and bias, none of which is trained, and no pattern of --train names its statistics; or
//   it has none, and --train or --freeze leave weights before it, none of which is trained.
//
// Mode::kPreserve keeps those of nodes with training_mode=0, too, and Mode::kFrozen all. The summary says what
// kPreserve would change in a file where the attribute is 0 here and 1 there. Types must be inferred. Throws Error as
// select_trainable does.
BatchNormStatistics decide_statistics(const Model& model, const BuildOptions& options);

}  // namespace onnx_train
