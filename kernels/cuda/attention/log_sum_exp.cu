#include "kernels/cuda/attention/log_sum_exp.h"

#include "kernels/cuda/support/launch.h"
#include "kernels/math/vector_math.h"

namespace onnx_train::cuda {
namespace {

__global__ void add_logarithms(int64_t n, const float* highest, const float* sum, float* result) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) result[i] = highest[i] + math::log(sum[i]);
}

}  // namespace

void log_sum_exp(const Launch& launch, int64_t n, const float* highest, const float* sum, float* result) {
  enqueue(launch, "add_logarithms", add_logarithms, blocks_for(n), kThreads, 0, n, highest, sum, result);
}

}  // namespace onnx_train::cuda
