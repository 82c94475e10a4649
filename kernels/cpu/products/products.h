// Batches of matrix products: the description that the product kernels share, and the functions that prepare them. The
// prepare_* functions throw Error for shapes that do not fit; a Prepared belongs to its node and runs on one thread at
// a time.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cpu {

// A batch of matrices inside a tensor. Either rows or columns are contiguous.
struct Matrices {
  Shape batch;          // size 1 broadcasts the matrices against a larger batch
  Shape batch_strides;  // in elements, like all strides
  int64_t row_stride = 0, column_stride = 1;
};

// y[i] = alpha a[i] b[i], or y[i] + alpha a[i] b[i]; a[i] is m x k, b[i] is k x n. All batches have the same rank.
struct Product {
  Matrices a, b, y;
  int64_t m = 0, n = 0, k = 0;
  double alpha = 1;
  bool accumulate = false;  // y holds the starting value
};

// Whether this node is a bfloat16 product that the CPU executes natively (elsewhere oneDNN emulates bfloat16, slower
// than float32): inputs 0 and 1 are bfloat16, further float inputs are float32, output 0 is float32 or bfloat16.
bool is_bfloat16_product(const NodeSpec& spec);

// Element types that MatMul, Gemm and Einsum are defined for and that the runtime stores.
bool has_product(DType dtype);

// rows x columns matrices stored one after the other, or their transposes.
Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed = false);

// Reduces the number of batch axes: drops axes of size 1, merges adjacent axes, and turns batch axes into rows of a
// where all of them share one b (a linear layer).
void simplify(Product& product);

// Prepares the product of inputs 0 and 1 into output 0: one element type, or bfloat16 operands and a float32 or
// bfloat16 result. With `bias` input 2 holds n float32 numbers that are added to each row.
Prepared prepare_product(const NodeSpec& spec, Product product, bool bias = false);

Prepared prepare_float_product(const NodeSpec& spec, Product product, bool bias);  // float_products.cc
Prepared prepare_einsum(const NodeSpec& spec);                                     // einsum.cc

}  // namespace onnx_train::cpu
