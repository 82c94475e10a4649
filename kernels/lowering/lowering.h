// Rewrites of a plan's graph that every device shares: the shapes are concrete by now, the state tensors are inputs.
// IR to IR, by the same Pass and pipeline as training passes.
#pragma once

#include <vector>

#include "onnx_passes/passes/pass.h"

namespace onnx_train {

// In order: fold what shapes make constant, remove dead nodes.
std::vector<Pass> shared_lowering();

// Infers every node with the concrete shapes of the inputs; nodes whose inputs are all constant (small ones, or free
// of arithmetic on weights) are computed now by the CPU's kernels and become initializers.
bool fold_constants(Model& model);

// True for nodes whose output is their first input's memory with another shape: Reshape, Squeeze, Unsqueeze, Flatten,
// Identity.
bool is_view(const Node& node);

}  // namespace onnx_train
