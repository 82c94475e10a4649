// The norm of all gradients, for the table of the optimizers' kernels.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cpu {

Kernel global_norm_kernel();

}  // namespace onnx_train::cpu
