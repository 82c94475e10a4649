// Workspaces of nodes that cuDNN runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_train::cuda {

// Bytes that a graph of cuDNN may need. Tensor cores read images with the channels last, so that an algorithm copies
// its operands: 1.2 GB of float32 in a layer of ResNet-50 with a batch of 256. Tests set another limit.
inline int64_t most_cudnn_workspace = int64_t{2} << 30;

// Places parts of a workspace one after the other.
class WorkspaceParts {
 public:
  size_t add(size_t bytes) {
    constexpr size_t kAlignment = 256;
    const size_t at = end_;
    end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  size_t bytes() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace onnx_train::cuda
