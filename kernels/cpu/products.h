// A batch of matrix products as the product kernels see it.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cpu {

// A batch of matrices somewhere in a tensor. Rows or columns are next to each other in memory.
struct Matrices {
  Shape batch;          // a 1 repeats the matrices against a larger batch
  Shape batch_strides;  // in elements, as all strides
  int64_t row_stride = 0, column_stride = 1;
};

// y[i] = alpha a[i] b[i], or y[i] + that; a[i] is m x k, b[i] is k x n. The batches have one rank.
struct Product {
  Matrices a, b, y;
  int64_t m = 0, n = 0, k = 0;
  double alpha = 1;
  bool accumulate = false;  // y holds a starting value
};

// Where the CPU multiplies bfloat16 numbers (oneDNN emulates it elsewhere, slower than float32): a node whose inputs 0
// and 1 are bfloat16, whose output 0 is float32, and so is any further float.
bool is_bfloat16_product(const NodeSpec& spec);

// The types that MatMul, Gemm and Einsum are defined for, and that we store.
bool has_product(DType dtype);

// rows x columns matrices one after the other, or their transposes.
Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed = false);

// As few batch axes as possible: those of size 1 go, those that lie behind each other become one, and where every row
// meets the same b (a linear layer) they become rows.
void simplify(Product& product);

// Of inputs 0 and 1 into output 0: of one element type, or from bfloat16 to float32. With `bias` (float32 only), input
// 2 holds n numbers to add to each row.
Prepared prepare_product(const NodeSpec& spec, Product product, bool bias = false);

Prepared prepare_float_product(const NodeSpec& spec, Product product, bool bias);  // float_products.cc
Prepared prepare_einsum(const NodeSpec& spec);                                     // einsum.cc

}  // namespace onnx_train::cpu
