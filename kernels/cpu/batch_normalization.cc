#include "kernels/cpu/normalization.h"

namespace onnx_train::cpu {

std::vector<Kernel> batch_normalization_kernels() { return {}; }

}  // namespace onnx_train::cpu
