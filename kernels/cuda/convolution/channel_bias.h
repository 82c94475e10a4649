// The bias after a cuDNN convolution, enqueued on the stream of a run.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// y[i] = from[i] + bias[channel of i], rounded to `type`, for elements [batch, channels, sizes..]. `from` may be y.
void add_channel_bias(const Launch& launch, const Shape& shape, const float* from, const float* bias, DType type,
                      void* y);

}  // namespace onnx_train::cuda
