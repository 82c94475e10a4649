#include "kernels/cuda/support/runtime.h"

#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the runtime keeps unless the context is broken
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  fail_as(code, "CUDA: ", call, ": ", cudaGetErrorString(status));
}

int current_device() {
  int number = 0;
  check(cudaGetDevice(&number), "cudaGetDevice");
  return number;
}

int device_attribute(cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, current_device()), "cudaDeviceGetAttribute");
  return value;
}

int num_multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

int set_device(int number) {
  const int before = current_device();
  if (before != number) check(cudaSetDevice(number), "cudaSetDevice");
  return before;
}

void restore_device(int before) noexcept {
  int now = before;
  if (cudaGetDevice(&now) != cudaSuccess || now != before) cudaSetDevice(before);
}

DeviceMemory::DeviceMemory(size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

PinnedMemory::PinnedMemory(size_t bytes) { check(cudaMallocHost(&data_, bytes), "cudaMallocHost"); }
PinnedMemory::~PinnedMemory() { cudaFreeHost(data_); }

Event::Event(unsigned flags) { check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate"); }
Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}

}  // namespace onnx_train::cuda
