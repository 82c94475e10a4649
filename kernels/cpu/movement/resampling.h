// Kernel rows of Resize and its gradient (resampling.cc).
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> resampling_kernels();

}  // namespace onnx_train::cpu
