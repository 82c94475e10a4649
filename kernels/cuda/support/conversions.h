// Conversions on the stream of a run between a node's float32 tensors and the 16-bit copies that a library reads or
// writes.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// to[i] = from[i] for n elements of `type`: a 16-bit type or float.
void widen(const Launch& launch, DType type, int64_t n, const void* from, float* to);

// to[i] = from[i], rounded to `type`, for the same types.
void narrow(const Launch& launch, DType type, int64_t n, const float* from, void* to);

}  // namespace onnx_train::cuda
