// The functions that prepare batches of matrix products (kernels/geometry/products.h). A Prepared belongs to its node
// and runs on one thread at a time.
#pragma once

#include "kernels/geometry/products.h"

namespace onnx_train::cuda {

// The product of inputs 0 and 1 into output 0, with the node's bias (bias_of) or its output `sums`.
Prepared prepare_product(const NodeSpec& spec, Product product, ProductVector vector = ProductVector::kNone);

Prepared prepare_einsum(const NodeSpec& spec);  // einsum.cu

}  // namespace onnx_train::cuda
