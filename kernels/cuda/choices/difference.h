// How far two results of one computation are apart.
#pragma once

#include "kernels/cuda/support/stream.h"
#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Returns ‖x - y‖ / ‖y‖ of n elements on the device, 0 if both are zeros, and NaN where one of them is; 0 for types
// that are no floats. Waits for the launch's stream.
double relative_difference(const Launch& launch, DType type, int64_t n, const void* x, const void* y);

}  // namespace onnx_train::cuda
