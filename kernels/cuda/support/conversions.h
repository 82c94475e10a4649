// Copies in another float type, enqueued on the stream of a run: what a library reads or writes in 16 bits, beside
// what a node has in float32.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// to[i] = from[i] for n elements of a 16-bit type, or of float.
void widen(const Launch& launch, DType type, int64_t n, const void* from, float* to);

// to[i] = from[i], rounded to `type`, likewise.
void narrow(const Launch& launch, DType type, int64_t n, const float* from, void* to);

}  // namespace onnx_train::cuda
