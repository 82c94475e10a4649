// What the library's backward pass of attention reads in the place of two statistics.
#pragma once

#include "kernels/kernel.h"

namespace onnx_train::cuda {

// result[i] = highest[i] + log sum[i] for n queries, enqueued on the stream of a run: exp(score - result) is then the
// probability exp(score - highest) / sum.
void log_sum_exp(const Launch& launch, int64_t n, const float* highest, const float* sum, float* result);

}  // namespace onnx_train::cuda
