// The asynchronous device of the tests as a module: libonnx_train_async_host.so.
#include "tests/support/async_host_device.h"

extern "C" __attribute__((visibility("default"))) onnx_train::Device* onnx_train_make_device(int number) {
  onnx_train::check_device_number("async_host", number, 1);
  static onnx_train::AsyncHostDevice device;
  return &device;
}
