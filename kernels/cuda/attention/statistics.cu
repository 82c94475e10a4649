#include "kernels/cuda/attention/statistics.h"

#include <cmath>

#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cuda {
namespace {

__global__ void add_logarithms(int64_t n, const float* highest, const float* sum, bool guarded, float* result) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const bool is_undefined = guarded && sum[i] != sum[i];
  result[i] = is_undefined ? static_cast<float>(INFINITY) : highest[i] + math::log(sum[i]);
}

// One thread per row: few rows are hidden, if any.
__global__ void clear_hidden(int64_t n, ResultRows rows, float hidden, const float* highest, float* sum, uint16_t* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n || !(highest[i] <= hidden)) return;
  sum[i] = NAN;
  const int64_t matrix = i / rows.rows, row = i - matrix * rows.rows;
  const int64_t batch = matrix / rows.heads, head = matrix - batch * rows.heads;
  uint16_t* const to = y + batch * rows.strides[0] + head * rows.strides[1] + row * rows.strides[2];
  for (int64_t column = 0; column < rows.width; ++column) to[column] = 0;
}

__global__ void copy_to_rows(int64_t n, Divider columns, Divider rows, const float* x, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t row = columns.quotient(i), column = i - row * columns.divisor();
  y[i] = x[rows.quotient(row) * columns.divisor() + column];
}

}  // namespace

void log_sum_exp(const Launch& launch, int64_t n, const float* highest, const float* sum, bool guarded, float* result) {
  enqueue_each(launch, "add_logarithms", add_logarithms, n, highest, sum, guarded, result);
}

void hide_rows(const Launch& launch, int64_t n, const ResultRows& rows, float hidden, const float* highest, float* sum,
               void* y) {
  enqueue_each(launch, "clear_hidden", clear_hidden, n, rows, hidden, highest, sum, static_cast<uint16_t*>(y));
}

void repeat_rows(const Launch& launch, int64_t matrices, int64_t rows, int64_t columns, const float* x, float* y) {
  enqueue_each(launch, "copy_to_rows", copy_to_rows, matrices * rows * columns, Divider(columns), Divider(rows), x, y);
}

}  // namespace onnx_train::cuda
