// Products with an activation, or its gradient, as their epilogue, by cuDNN: cuBLASLt has only Relu, and the form of
// GELU with tanh. The library compiles the kernel of such a product when a plan first asks for it.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Products to which fuse_products.cc has given an activation or the gradient of one, where the library has an algorithm
// that is deterministic. Operands and results have 16 bits and one type; sums, and what is made of them, are float32.
// These rows precede ours, which have Relu.
std::vector<Kernel> cudnn_product_kernels();

}  // namespace onnx_train::cuda
