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

// The types that MatMul, Gemm and Einsum are defined for, and that we store.
bool has_product(DType dtype);

// The product that a MatMul of these shapes is, with as few batch dimensions as possible.
Product matmul_product(Shape a, Shape b);

// Of inputs 0 and 1 into output 0, of the element type of the node's inputs. With `bias` (float32 only), input 2 holds
// n numbers to add to each row.
Prepared prepare_product(const NodeSpec& spec, const Product& product, bool bias = false);

Prepared prepare_einsum(const NodeSpec& spec);  // einsum.cc

}  // namespace onnx_train::cpu
