// The bias beside a convolution, enqueued on the stream of a run.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// y[i] = from[i] + bias[channel of i], rounded to `type`, for elements [batch, channels, sizes..]. `from` and `bias`
// have the type in which `type` is computed, or are null: then they count as zeros. `from` may be y.
void add_channel_bias(const Launch& launch, const Shape& shape, const void* from, const void* bias, DType type,
                      void* y);

}  // namespace onnx_train::cuda
