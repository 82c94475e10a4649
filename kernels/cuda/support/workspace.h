// Limits of cuDNN's graphs; tests set other values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_train::cuda {

// Most bytes of a graph's workspace. Tensor cores read channels-last images, so algorithms copy their operands: 1.2 GB
// of float32 in a layer of ResNet-50 with a batch of 256.
inline int64_t most_cudnn_workspace = int64_t{2} << 30;

// Graphs of a kind (convolutions, products, attentions) that are kept for later plans. A network has some dozens; the
// limit keeps a program with ever new shapes from growing.
inline size_t most_cudnn_graphs = 512;

}  // namespace onnx_train::cuda
