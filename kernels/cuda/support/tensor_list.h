// The tensors that one launch processes, passed as kernel parameters (a multi-tensor kernel). Each has its own blocks.
#pragma once

#include <cstdint>

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/threads.h"

namespace onnx_train::cuda {

inline constexpr int64_t kOfBlock = 2048;  // elements of a tensor per block
static_assert(kOfBlock % kThreads == 0);

// `Tensor` has the members `size`, its number of elements, and `first_block`, which add() sets.
template <typename Tensor, int kMost>
struct TensorList {
  Tensor all[kMost];
  int count;
  int64_t blocks;

  void add(Tensor tensor) {
    tensor.first_block = blocks;
    blocks += (tensor.size + kOfBlock - 1) / kOfBlock;
    all[count++] = tensor;
  }

  // Returns the tensor of the calling block and, in *begin, the first of the block's elements.
  __device__ const Tensor& of_block(int64_t* begin) const {
    int t = 0;  // the last one whose first block is not after the calling one
    for (int others = count - 1; others > 0;) {
      const int half = (others + 1) / 2;
      const bool after = all[t + half].first_block > blockIdx.x;
      if (!after) t += half;
      others = after ? half - 1 : others - half;
    }
    *begin = (blockIdx.x - all[t].first_block) * kOfBlock;
    return all[t];
  }
};

}  // namespace onnx_train::cuda
