// Products with an activation, or its gradient, as epilogue: by cuDNN, which compiles the kernel of such a product when
// a plan first asks for it, or by cuBLASLt and a kernel of ours, whichever is faster.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Rows of products to which fuse_products.cc has added an activation or its gradient; they require a deterministic
// algorithm of cuDNN. Operands and results have one 16-bit type; sums and epilogues are computed in float32. These rows
// precede ours, which support Relu.
std::vector<Kernel> cudnn_product_kernels();

}  // namespace onnx_train::cuda
