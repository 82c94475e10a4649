// Limits for what cuDNN runs; tests set others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_train::cuda {

// Bytes that a graph of cuDNN may need. Tensor cores read images with the channels last, so that an algorithm copies
// its operands: 1.2 GB of float32 in a layer of ResNet-50 with a batch of 256.
inline int64_t most_cudnn_workspace = int64_t{2} << 30;

// Graphs of a kind (convolutions, products, attentions) that are kept for further plans: a network has some dozens, and
// a program that runs ever new shapes does not grow.
inline size_t most_cudnn_graphs = 512;

}  // namespace onnx_train::cuda
