// Kernel rows of the global gradient norm, which the optimizers' kernel table includes.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cpu {

Kernel global_norm_kernel();

}  // namespace onnx_train::cpu
