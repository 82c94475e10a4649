// A batch of matrix products as the product kernels see it.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cpu {

// out[i] = alpha a[i] b[i], or out[i] + that. a[i] is m x k, b[i] is k x n; one that is transposed lies in memory as
// its transpose. The batch dimensions have one rank; a 1 in batch_a or batch_b repeats the matrix.
struct Product {
  Shape batch, batch_a, batch_b;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1;
  bool accumulate = false;  // out holds a starting value
};

// The product that a MatMul of these shapes is, with as few batch dimensions as possible.
Product matmul_product(Shape a, Shape b);

// Of the node's inputs 0 and 1 into its output 0. With `bias` (float32 only), input 2 holds n numbers to add to each
// row.
Prepared prepare_product(const NodeSpec& spec, const Product& product, bool bias = false);

}  // namespace onnx_train::cpu
