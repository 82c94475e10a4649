// What stands between cuDNN's attention and what a plan keeps: the statistics of rows, and masks.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// Writes the statistic that the library's backward pass reads: result[i] = highest[i] + log sum[i] for n queries, so
// that exp(score - result) is the probability exp(score - highest) / sum. With `guarded`, result[i] is infinite if the
// sum is NaN: all probabilities of that row, and the gradients of its scores, are then 0.
void log_sum_exp(const Launch& launch, int64_t n, const float* highest, const float* sum, bool guarded, float* result);

// The rows of 16-bit elements of a result. Row i of matrix (b, h) starts at element b strides[0] + h strides[1] + i
// strides[2].
struct ResultRows {
  int64_t heads, rows, width;  // heads of a batch element, rows of a matrix
  int64_t strides[3];
};

// Sets rows whose highest score is at most `hidden` to 0, and their sums to NaN; n = batch heads rows.
void hide_rows(const Launch& launch, int64_t n, const ResultRows& rows, float hidden, const float* highest, float* sum,
               void* y);

// y[matrix, row, column] = x[matrix, column]
void repeat_rows(const Launch& launch, int64_t matrices, int64_t rows, int64_t columns, const float* x, float* y);

}  // namespace onnx_train::cuda
