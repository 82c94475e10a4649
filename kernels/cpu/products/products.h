// The functions that prepare batches of matrix products (kernels/geometry/products.h). A Prepared belongs to its node
// and runs on one thread at a time.
#pragma once

#include "kernels/geometry/products.h"

namespace onnx_train::cpu {

// Whether this node is a bfloat16 product that the CPU executes natively (elsewhere oneDNN emulates bfloat16, slower
// than float32): inputs 0 and 1 are bfloat16, further float inputs are float32, output 0 is float32 or bfloat16.
bool is_bfloat16_product(const NodeSpec& spec);

// Prepares the product of inputs 0 and 1 into output 0: one element type, or bfloat16 operands and a float32 or
// bfloat16 result. With `bias` input 2 holds n float32 numbers that are added to each row.
Prepared prepare_product(const NodeSpec& spec, Product product, bool bias = false);

Prepared prepare_float_product(const NodeSpec& spec, Product product, bool bias);  // float_products.cc
// float32 by BLAS, for where there is no oneDNN.
Prepared prepare_blas_product(const NodeSpec& spec, Product product, bool bias);
Prepared prepare_einsum(const NodeSpec& spec);  // einsum.cc

}  // namespace onnx_train::cpu
