// The functions that prepare batches of matrix products (kernels/geometry/products.h). A Prepared belongs to its node
// and runs on one thread at a time.
#pragma once

#include "kernels/geometry/products.h"

namespace onnx_train::cuda {

// The product of inputs 0 and 1 into output 0. A bias is input 2, sums of an operand are output 1.
Prepared prepare_product(const NodeSpec& spec, Product product, Epilogue epilogue = Epilogue::kNone);

Prepared prepare_einsum(const NodeSpec& spec);  // einsum.cu

}  // namespace onnx_train::cuda
