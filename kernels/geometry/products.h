// The matrix products of MatMul, Gemm and TransposedMatMul nodes as batches of strided matrices, for the kernels of
// every device. Pure functions; any thread. They throw Error that names the node if shapes do not fit.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train {

// A batch of matrices inside a tensor. Either rows or columns are contiguous.
struct Matrices {
  Shape batch;          // size 1 broadcasts the matrices against a larger batch
  Shape batch_strides;  // in elements, like all strides
  int64_t row_stride = 0, column_stride = 1;
};

// A function of a product's result, after a bias, that the device's library may apply. kGeluTanhGrad multiplies by
// GELU's slope at a matrix x like y; kGeluTanh may write its operand x, too.
enum class LibraryActivation { kNone, kRelu, kGeluTanh, kGeluTanhWithOperand, kGeluTanhGrad };

// y[i] = alpha a[i] b[i], or y[i] + alpha a[i] b[i]; a[i] is m x k, b[i] is k x n. All batches have the same rank.
struct Product {
  Matrices a, b, y;
  int64_t m = 0, n = 0, k = 0;
  double alpha = 1;
  bool accumulate = false;                                  // y holds the starting value
  LibraryActivation activation = LibraryActivation::kNone;  // only if the device's library supports it
};

// A batch of contiguous rows x columns matrices, or of their transposes.
Matrices row_major_matrices(const Shape& batch, int64_t rows, int64_t columns, bool transposed = false);

// Reduces the number of batch axes: drops axes of size 1, merges adjacent axes, and turns batch axes into rows of a if
// all share one b (a linear layer).
void merge_batches(Product& product);

// Returns the product of inputs 0 and 1; Gemm's product excludes C.
Product matmul_product(const NodeSpec& spec);
Product transposed_matmul_product(const NodeSpec& spec);
Product gemm_product(const NodeSpec& spec);

// The vector that a product reads or writes in the same pass. kBias: added to each row of y, [n]. kSumsOfA and
// kSumsOfB: the sums of a [m] or b [n] over k, which are bias gradients if the product is a weight gradient.
enum class ProductVector { kNone, kBias, kSumsOfA, kSumsOfB };

// Returns the vector of the steps of the node's epilogue (onnx_passes/operators/epilogue.h).
ProductVector vector_of(const NodeSpec& spec);

// Returns the input that the product may add to each row of y: the bias, or a Gemm's C that is one, or -1.
int bias_of(const NodeSpec& spec);

// Returns those of the epilogues whose steps the row of the operator of our domain has: a Gemm has no step `bias`.
std::vector<const char*> epilogues_of(const char* op, const std::vector<const char*>& all);

// Whether input i has one number per column of output 0, like a bias; Gemm's C may be a column instead.
bool is_row_of_result(const NodeSpec& spec, int i);

// Whether the product itself can add Gemm's C: a plain bias, one row of n numbers, or a matrix like y.
bool adds_bias(const NodeSpec& spec);
bool adds_matrix(const NodeSpec& spec);

// Whether MatMul, Gemm and Einsum are defined for the element type and the runtime stores it.
bool has_product(DType dtype);

}  // namespace onnx_train
