// What runs before and after a convolution of the library: operands of 16 bits widened, a bias added. The functions
// enqueue work on the stream of a run.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// to[i] = from[i] for n elements of a 16-bit type.
void widen(const Launch& launch, DType type, int64_t n, const void* from, float* to);

// y[i] = from[i] + bias[channel of i], rounded to `type`, for elements [batch, channels, sizes..]. `from` may be y.
void add_channel_bias(const Launch& launch, const Shape& shape, const float* from, const float* bias, DType type,
                      void* y);

}  // namespace onnx_train::cuda
