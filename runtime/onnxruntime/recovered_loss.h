// The losses of onnxblock, which generate_artifacts adds to a model as nodes, as expressions of --loss. Functions on a
// model that one caller owns, before it is imported; any thread.
#pragma once

#include <optional>
#include <string>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

struct RecoveredLoss {
  std::string expression;  // "cross_entropy(logits, labels)"
  Value* prediction;
};

// What computes this value: CrossEntropyLoss, MSELoss, L1Loss or BCEWithLogitsLoss with their options. Nothing for all
// else, among it a BCEWithLogitsLoss with a weight for each element, and a target that broadcasts.
std::optional<RecoveredLoss> recover_loss(const Value& loss);

}  // namespace onnx_train
