// The filters by which the gradient of a convolution's input is a convolution, enqueued on the stream of a run.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// to[c, k, -t] = from[k, c, t] for filters [k, c, taps..] of a type of 2 or 4 bytes: the channels change places, and
// each window is read backwards.
void flip_filters(const Launch& launch, const Shape& shape, DType type, const void* from, void* to);

}  // namespace onnx_train::cuda
