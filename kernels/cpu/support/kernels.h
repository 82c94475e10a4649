// The families of CPU kernels (families.def), each a function that returns its rows.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

#define ONNX_TRAIN_FAMILY(name) std::vector<Kernel> name##_kernels();
#include "kernels/cpu/support/families.def"

}  // namespace onnx_train::cpu
