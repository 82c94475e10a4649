// Data known to `prepare` that a kernel reads: the constructor copies it to the device's memory. Prepared objects share
// it with their run functions. Any thread may read it. The constructor throws Error if memory or the copy fails.
#pragma once

#include <memory>

#include "kernels/cuda/support/runtime.h"

namespace onnx_train::cuda {

class DeviceTable {
 public:
  DeviceTable(const void* data, size_t bytes);
  template <typename T>
  const T* data() const {
    return static_cast<const T*>(memory_.data());
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  DeviceMemory memory_;
};

using SharedTable = std::shared_ptr<const DeviceTable>;

}  // namespace onnx_train::cuda
