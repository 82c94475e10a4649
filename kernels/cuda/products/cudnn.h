// Products with an activation, or its gradient, as epilogue, by cuDNN: cuBLASLt supports only Relu and GELU with tanh.
// The library compiles the kernel of such a product when a plan first asks for it.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Rows of products to which fuse_products.cc has added an activation or its gradient; they require a deterministic
// algorithm of the library. Operands and results have one 16-bit type; sums and epilogues are computed in float32.
// These rows precede ours, which support Relu.
std::vector<Kernel> cudnn_product_kernels();

}  // namespace onnx_train::cuda
