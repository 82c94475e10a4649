// The entry point of libonnx_train_cuda.so, and the limits of this program.
#include "kernels/cuda/support/cudnn_limits.h"
#include "kernels/cuda/support/device.h"

namespace onnx_train::cuda {

const CudnnLimits& cudnn_limits() {
  static const CudnnLimits limits;
  return limits;
}

}  // namespace onnx_train::cuda

extern "C" __attribute__((visibility("default"))) onnx_train::Device* onnx_train_make_device(int number) {
  return &onnx_train::cuda_device(number);
}
