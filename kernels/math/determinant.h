// The determinant of a small matrix, its derivatives, the cofactors, and its inverse, by Gaussian elimination. Matrices
// are [n, n] in row-major order. Pure functions; any thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"

namespace onnx_train::math {

template <typename T>
ONNX_TRAIN_HD inline void swap_values(T* a, T* b) {
  const T kept = *a;
  *a = *b;
  *b = kept;
}

// Returns det(a) and overwrites `a`. Rows are exchanged so that the largest element of a column is its pivot.
template <typename T>
ONNX_TRAIN_HD inline T determinant(int64_t n, T* a) {
  T product = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      if (std::fabs(a[i * n + k]) > std::fabs(a[pivot * n + k])) pivot = i;
    }
    if (pivot != k) {
      product = -product;
      for (int64_t j = k; j < n; ++j) swap_values(&a[k * n + j], &a[pivot * n + j]);
    }
    product *= a[k * n + k];
    if (a[k * n + k] == 0) return 0;
    for (int64_t i = k + 1; i < n; ++i) {
      const T factor = a[i * n + k] / a[k * n + k];
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return product;
}

// to = a⁻¹, overwrites `a`. Pivots as above. Of a singular matrix it has infinities and NaN.
template <typename T>
ONNX_TRAIN_HD inline void invert(int64_t n, T* a, T* to) {
  for (int64_t i = 0; i < n * n; ++i) to[i] = i % (n + 1) == 0 ? T{1} : T{0};
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      if (std::fabs(a[i * n + k]) > std::fabs(a[pivot * n + k])) pivot = i;
    }
    for (int64_t j = 0; pivot != k && j < n; ++j) {
      swap_values(&a[k * n + j], &a[pivot * n + j]);
      swap_values(&to[k * n + j], &to[pivot * n + j]);
    }
    const T divisor = a[k * n + k];
    for (int64_t j = 0; j < n; ++j) {
      a[k * n + j] /= divisor;
      to[k * n + j] /= divisor;
    }
    for (int64_t i = 0; i < n; ++i) {
      const T factor = a[i * n + k];
      for (int64_t j = 0; i != k && j < n; ++j) {
        a[i * n + j] -= factor * a[k * n + j];
        to[i * n + j] -= factor * to[k * n + j];
      }
    }
  }
}

// Elements of workspace that `cofactors` needs.
inline int64_t cofactor_elements(int64_t n) { return 2 * n * n + 2 * n; }

// to = scale times the cofactors of `x`, right for singular matrices, too. Rows and columns are exchanged so that the
// largest element left is the pivot: x with rows r and columns c is L U, and if x has rank n - 1 only the last element
// u of U is zero. With U = [U1 v; 0 u] and d = det(U1),
//     cof(L U) = L⁻ᵀ cof(U),    cof(U) = d [u U1⁻ᵀ 0; -(U1⁻¹ v)ᵀ 1]
// in which nothing is divided by u.
template <typename T>
ONNX_TRAIN_HD inline void cofactors(int64_t n, const T* x, T scale, T* to, T* workspace) {
  if (n == 0) return;
  T *lu = workspace, *cof = lu + n * n;
  auto *rows = reinterpret_cast<int32_t*>(cof + n * n), *columns = rows + n;
  for (int64_t i = 0; i < n * n; ++i) {
    lu[i] = x[i];
    cof[i] = 0;
  }
  for (int64_t i = 0; i < n; ++i) rows[i] = columns[i] = static_cast<int32_t>(i);
  T d = scale;
  for (int64_t k = 0; k + 1 < n; ++k) {
    int64_t row = k, column = k;
    for (int64_t i = k; i < n; ++i) {
      for (int64_t j = k; j < n; ++j) {
        if (std::fabs(lu[i * n + j]) > std::fabs(lu[row * n + column])) row = i, column = j;
      }
    }
    if (row != k) {
      d = -d;
      swap_values(&rows[k], &rows[row]);
      for (int64_t j = 0; j < n; ++j) swap_values(&lu[k * n + j], &lu[row * n + j]);
    }
    if (column != k) {
      d = -d;
      swap_values(&columns[k], &columns[column]);
      for (int64_t i = 0; i < n; ++i) swap_values(&lu[i * n + k], &lu[i * n + column]);
    }
    const T pivot = lu[k * n + k];
    d *= pivot;
    if (pivot == 0) {  // of rank n - 2 at most
      for (int64_t i = 0; i < n * n; ++i) to[i] = 0;
      return;
    }
    for (int64_t i = k + 1; i < n; ++i) {
      const T factor = lu[i * n + k] /= pivot;
      for (int64_t j = k + 1; j < n; ++j) lu[i * n + j] -= factor * lu[k * n + j];
    }
  }
  // cof[j, i] = (U1⁻¹)[i, j] column by column, then the last row -(U1⁻¹ v), each times d and u or d.
  const int64_t m = n - 1;
  const T u = lu[n * n - 1];
  for (int64_t j = 0; j < m; ++j) {
    for (int64_t i = j + 1; i-- > 0;) {
      T sum = i == j ? T{1} : T{0};
      for (int64_t k = i + 1; k <= j; ++k) sum -= lu[i * n + k] * cof[j * n + k];
      cof[j * n + i] = sum / lu[i * n + i];
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    T sum = 0;
    for (int64_t j = i; j < m; ++j) sum += cof[j * n + i] * lu[j * n + m];
    cof[m * n + i] = -d * sum;
  }
  for (int64_t j = 0; j < m; ++j) {
    for (int64_t i = 0; i <= j; ++i) cof[j * n + i] *= d * u;
  }
  cof[n * n - 1] = d;
  for (int64_t i = n; i-- > 0;) {  // Lᵀ y = cof
    for (int64_t k = i + 1; k < n; ++k) {
      for (int64_t j = 0; j < n; ++j) cof[i * n + j] -= lu[k * n + i] * cof[k * n + j];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) to[rows[i] * n + columns[j]] = cof[i * n + j];
  }
}

}  // namespace onnx_train::math
