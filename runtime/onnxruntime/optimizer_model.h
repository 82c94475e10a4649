// The optimizer in optimizer_model.onnx. A pure function; any thread.
#pragma once

#include <string>

#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

struct RecoveredOptimizer {
  std::string expression;  // of --optimizer: "hf_adamw(lr=0.001, ...)"
  double clip_norm = 0;    // 0: no clipping
};

// AdamWOptimizer or SGDOptimizerV2, after InplaceClipGradNorm if it is there. Throws Error that names another node.
RecoveredOptimizer recover_optimizer(const onnx::GraphProto& graph, const std::string& learning_rate);

}  // namespace onnx_train
