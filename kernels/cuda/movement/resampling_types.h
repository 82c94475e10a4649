// The element types that Resize weights and sums in float64: all but float32 and float64. The functions enqueue work
// for a run.
#pragma once

#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

// y = x for n elements of type `dtype`.
void widen(const Launch& launch, DType dtype, int64_t n, const void* x, double* y);
// y = x, rounded to nearest and clamped to the range of `dtype`.
void narrow(const Launch& launch, DType dtype, int64_t n, const double* x, void* y);

}  // namespace onnx_train::cuda
