// Limits of cuDNN's graphs that a test sets and restores.
#pragma once

#include "kernels/cuda/support/cudnn_limits.h"

namespace onnx_train {

// Sets other limits while the object lives; one at a time.
class OtherCudnnLimits {
 public:
  explicit OtherCudnnLimits(const cuda::CudnnLimits& limits);
  ~OtherCudnnLimits();
  OtherCudnnLimits(const OtherCudnnLimits&) = delete;
};

}  // namespace onnx_train
