// The families of CUDA kernels (families.def), each a function that returns its rows.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

#define ONNX_TRAIN_FAMILY(name) std::vector<Kernel> name##_kernels();
#include "kernels/cuda/support/families.def"

}  // namespace onnx_train::cuda
