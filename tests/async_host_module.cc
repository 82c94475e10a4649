// The asynchronous device of the tests as a module: libonnx_train_async_host.so.
#include "tests/async_host_device.h"

extern "C" __attribute__((visibility("default"))) onnx_train::Device* onnx_train_make_device() {
  static onnx_train::AsyncHostDevice device;
  return &device;
}
