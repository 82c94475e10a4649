// Rewrites that only the CPU wants, beside those of kernels/lowering.
#pragma once

#include "onnx_passes/ir/model.h"

namespace onnx_train::cpu {

// Images lie channels last in memory, [batch, sizes.., channels], through whole regions of convolutions.
bool channels_last(Model& model);

}  // namespace onnx_train::cpu
