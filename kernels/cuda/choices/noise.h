// Pseudo-random elements, for measurements: products of zeros take less power, so their clock is higher.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Enqueues a kernel that fills n elements with numbers in [-1, 1), the same for the same seed. Elements that are no
// floats are not written.
void fill_with_noise(const Launch& launch, DType type, int64_t n, uint32_t seed, void* to);

}  // namespace onnx_train::cuda
