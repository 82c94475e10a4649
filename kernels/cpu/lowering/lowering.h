// Rewrites that only the CPU wants, beside those of kernels/lowering.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train::cpu {

// Relu, or Add and Relu, become part of the batch normalization before them; so do their gradients.
bool fuse_batch_normalization(Model& model);

// Images lie channels last in memory, [batch, sizes.., channels], through whole regions of convolutions.
bool channels_last(Model& model);

}  // namespace onnx_train::cpu
