// One product of float32 or float64 matrices by BLAS, y = alpha a b, or y + alpha a b: row-major matrices or their
// transposes. OpenBLAS divides large ones among the threads of OpenMP, and uses one inside of a parallel region. Any
// thread may call.
#pragma once

#include <climits>

#include "kernels/cpu/products/gemm.h"

namespace onnx_train::cpu {

// BLAS counts in int.
constexpr int64_t kMostOfBlas = INT_MAX;

// Reads of the shape what says which matrices they are, and `accumulate`. T is float or double.
template <typename T>
void multiply_by_blas(const GemmShape& shape, double alpha, const T* a, const T* b, T* y);

extern template void multiply_by_blas(const GemmShape& shape, double alpha, const float* a, const float* b, float* y);
extern template void multiply_by_blas(const GemmShape& shape, double alpha, const double* a, const double* b,
                                      double* y);

}  // namespace onnx_train::cpu
