#include "kernels/cpu/products/row_product.h"

#include <algorithm>

#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kMostRows = 4;
constexpr int64_t kColumns = 1024;  // of y, which stay in the cache while b passes by
constexpr int64_t kUnrolled = 4;    // rows of b, or columns that are contiguous, at a time
constexpr int64_t kLanes = 16;
constexpr int64_t kGrain = 1 << 15;  // elements of b for a thread

struct RowOperands {
  const float *a, *b, *bias;
  float* y;
};

// What is added to a sum, after alpha: as if nodes of their own did so, bit for bit.
float added_to(const Product& p, const RowOperands& o, int64_t row, int64_t column) {
  return p.accumulate ? o.y[row * p.y.row_stride + column] : o.bias ? o.bias[column] : 0;
}

// y += sum over i of factors[i] b[i]
template <int64_t kRows>
void add_rows(const float* factors, const float* __restrict b, int64_t stride, int64_t count, float* __restrict y) {
  for (int64_t j = 0; j < count; ++j) {
    float sum = y[j];
    for (int64_t i = 0; i < kRows; ++i) sum += factors[i] * b[i * stride + j];
    y[j] = sum;
  }
}

// Columns [from, to) where b has contiguous rows.
void by_rows(const Product& p, const RowOperands& o, int64_t from, int64_t to) {
  const auto alpha = static_cast<float>(p.alpha);
  float sums[kMostRows][kColumns], factors[kUnrolled];
  for (int64_t column = from; column < to; column += kColumns) {
    const int64_t count = std::min(kColumns, to - column);
    for (int64_t row = 0; row < p.m; ++row) std::fill_n(sums[row], count, 0.0F);
    for (int64_t k = 0; k < p.k; k += kUnrolled) {
      const int64_t more = std::min(kUnrolled, p.k - k);
      const float* b = o.b + k * p.b.row_stride + column;
      for (int64_t row = 0; row < p.m; ++row) {
        for (int64_t i = 0; i < more; ++i) factors[i] = o.a[row * p.a.row_stride + (k + i) * p.a.column_stride];
        if (more == kUnrolled) {
          add_rows<kUnrolled>(factors, b, p.b.row_stride, count, sums[row]);
        } else {
          for (int64_t i = 0; i < more; ++i) add_rows<1>(factors + i, b + i * p.b.row_stride, 0, count, sums[row]);
        }
      }
    }
    for (int64_t row = 0; row < p.m; ++row) {
      for (int64_t j = 0; j < count; ++j)
        o.y[row * p.y.row_stride + column + j] = alpha * sums[row][j] + added_to(p, o, row, column + j);
    }
  }
}

// The products of a with kUnrolled columns, each contiguous.
void add_columns(const float* __restrict a, const float* __restrict b, int64_t stride, int64_t k, float* sums) {
  float lanes[kUnrolled][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int64_t c = 0; c < kUnrolled; ++c) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[c][l] += a[i + l] * b[c * stride + i + l];
    }
  }
  for (int64_t c = 0; c < kUnrolled; ++c) {
    for (int64_t l = 0; i + l < k; ++l) lanes[c][l] += a[i + l] * b[c * stride + i + l];
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) lanes[c][l] += lanes[c][l + width];
    }
    sums[c] = lanes[c][0];
  }
}

// Columns [from, to) where they are contiguous. The last ones are computed beside some that are known already.
void by_columns(const Product& p, const RowOperands& o, int64_t from, int64_t to) {
  float sums[kUnrolled];
  for (int64_t column = from; column < to; column += kUnrolled) {
    const int64_t first = std::min(column, p.n - kUnrolled);
    for (int64_t row = 0; row < p.m; ++row) {
      add_columns(o.a + row * p.a.row_stride, o.b + first * p.b.column_stride, p.b.column_stride, p.k, sums);
      for (int64_t c = std::max(column, first); c < std::min(to, first + kUnrolled); ++c)
        o.y[row * p.y.row_stride + c] = static_cast<float>(p.alpha) * sums[c - first] + added_to(p, o, row, c);
    }
  }
}

}  // namespace

bool supports_row_product(const Product& p) {
  const bool by_row = p.b.column_stride == 1, by_column = p.b.row_stride == 1 && p.a.column_stride == 1;
  return p.y.batch.empty() && p.m <= kMostRows && p.n >= kUnrolled && p.y.column_stride == 1 && (by_row || by_column);
}

bool is_row_product(const Product& p) {
  // Elements of b, which then come from memory; measured. Several rows of a use it more than once.
  constexpr int64_t kLarge = 1 << 16, kLargeForRows = 1 << 18;
  return p.k * p.n >= (p.m == 1 ? kLarge : kLargeForRows);
}

Prepared prepare_row_product(const Product& p, bool bias) {
  const int64_t grain = std::max(kGrain / p.k / kLanes, int64_t{1}) * kLanes;
  return {[p, bias, grain](const Launch& launch) {
            const RowOperands o{launch.in<float>(0), launch.in<float>(1), bias ? launch.in<float>(2) : nullptr,
                                launch.out<float>()};
            parallel_for(p.n, grain, [&](int64_t from, int64_t to) {
              vectorized([&] { p.b.column_stride == 1 ? by_rows(p, o, from, to) : by_columns(p, o, from, to); });
            });
          },
          0,
          {}};
}

}  // namespace onnx_train::cpu
