// Limits of cuDNN's graphs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_train::cuda {

struct CudnnLimits {
  // Most bytes of a graph's workspace. Tensor cores read channels-last images, so algorithms copy their operands: 1.2
  // GB of float32 in a layer of ResNet-50 with a batch of 256.
  int64_t workspace = int64_t{2} << 30;
  // Plans of a graph among which the fastest is chosen, besides the first one of each engine.
  size_t plans = 8;
  // The same for plans that the library compiles, each for half a second.
  size_t compiled_plans = 4;
  // Graphs of a kind (convolutions, products, attentions) that are kept for later plans. A network has some dozens; the
  // limit keeps a program with ever new shapes from growing.
  size_t graphs = 512;
};

// The program defines it: the module has the limits above (module.cc).
const CudnnLimits& cudnn_limits();

}  // namespace onnx_train::cuda
