#include "kernels/cpu/products/blas.h"

#include <cblas.h>

#include <algorithm>

namespace onnx_train::cpu {

template <typename T>
void multiply_by_blas(const GemmShape& s, double alpha, const T* a, const T* b, T* y) {
  if (s.m == 0 || s.n == 0) return;
  if (s.k == 0) {
    for (int64_t i = 0; i < s.m && !s.accumulate; ++i) std::fill_n(y + i * s.y_row, s.n, T(0));
    return;
  }
  const auto size = [](int64_t n) { return static_cast<blasint>(n); };
  const auto order = [](int64_t column_stride) { return column_stride == 1 ? CblasNoTrans : CblasTrans; };
  const auto leading = [&](int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return size(column_stride == 1 ? std::max(row_stride, columns) : std::max(column_stride, rows));
  };
  const auto multiply = [&] {
    if constexpr (std::is_same_v<T, double>)
      return cblas_dgemm;
    else
      return cblas_sgemm;
  }();
  multiply(CblasRowMajor, order(s.a_column), order(s.b_column), size(s.m), size(s.n), size(s.k), static_cast<T>(alpha),
           a, leading(s.m, s.k, s.a_row, s.a_column), b, leading(s.k, s.n, s.b_row, s.b_column),
           static_cast<T>(s.accumulate ? 1 : 0), y, size(std::max(s.y_row, s.n)));
}

template void multiply_by_blas(const GemmShape& shape, double alpha, const float* a, const float* b, float* y);
template void multiply_by_blas(const GemmShape& shape, double alpha, const double* a, const double* b, double* y);

}  // namespace onnx_train::cpu
