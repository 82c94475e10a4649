#include "kernels/cuda/support/device_table.h"

#include <algorithm>

namespace onnx_train::cuda {

DeviceTable::DeviceTable(const void* data, size_t bytes) : bytes_(bytes), memory_(std::max<size_t>(bytes, 1)) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(memory_.data(), data, bytes, cudaMemcpyHostToDevice, nullptr), "copying a table");
  check(cudaStreamSynchronize(nullptr), "copying a table");
}

}  // namespace onnx_train::cuda
