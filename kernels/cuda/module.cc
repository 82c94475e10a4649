// The entry point of libonnx_train_cuda.so.
#include "kernels/cuda/device.h"

extern "C" __attribute__((visibility("default"))) onnx_train::Device* onnx_train_make_device(int number) {
  return &onnx_train::cuda_device(number);
}
