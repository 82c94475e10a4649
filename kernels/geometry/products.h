// The matrix products of a node, for the kernels of every device: what MatMul, Gemm and TransposedMatMul multiply, as
// batches of strided matrices. Pure functions; any thread. They throw Error that names the node when shapes do not fit.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train {

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
  bool relu = false;        // y is what Relu makes of that, and of a bias; only where a device's library does
};

// rows x columns matrices stored one after the other, or their transposes.
Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed = false);

// Reduces the number of batch axes: drops axes of size 1, merges adjacent axes, and turns batch axes into rows of a
// where all of them share one b (a linear layer).
void merge_batches(Product& product);

// The product of inputs 0 and 1. Gemm's is without C.
Product matmul_product(const NodeSpec& spec);
Product transposed_matmul_product(const NodeSpec& spec);
Product gemm_product(const NodeSpec& spec);

// What a product does besides multiplying. With a vector: it adds a bias [n] to each row of y, or writes the sums of a
// [m] or of b [n] over k, which are the gradient of a bias where the product is that of a weight. With a matrix like y:
// it adds a residual, perhaps after a bias; it multiplies by the slope of an activation there. Or it applies an
// activation, perhaps after a bias.
enum class Epilogue { kNone, kBias, kSumsOfA, kSumsOfB, kResidual, kActivation, kActivationGradient };

// That of a variant in our domain (kernels/functions/products.cc, kernels/lowering/fusion/fuse_products.cc): a bias
// is input 2 of what is no Gemm, whose C stands there; a matrix is the last input; sums are output 1.
Epilogue epilogue_of(const NodeSpec& spec);

// Whether input i has one number for each column of output 0, as a bias has: C of a Gemm may be a column instead.
bool is_row_of_result(const NodeSpec& spec, int i);

// Whether Gemm's C is a plain bias, one row of n numbers, which the product itself can add; or a matrix like y.
bool adds_bias(const NodeSpec& spec);
bool adds_matrix(const NodeSpec& spec);

// Element types that MatMul, Gemm and Einsum are defined for and that the runtime stores.
bool has_product(DType dtype);

}  // namespace onnx_train
