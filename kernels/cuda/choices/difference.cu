#include "kernels/cuda/choices/difference.h"

#include <cmath>
#include <vector>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {
namespace {

constexpr unsigned kBlocks = 256;

struct Largest {
  double difference = 0, y = 0;
};

// A NaN is the largest.
__host__ __device__ double larger(double a, double b) { return a != a || a > b ? a : b; }
__host__ __device__ Largest larger(const Largest& a, const Largest& b) {
  return {larger(a.difference, b.difference), larger(a.y, b.y)};
}

// One result for each block.
template <typename S>
__global__ void find_largest(int64_t n, const S* x, const S* y, Largest* largest) {
  Largest mine{};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{kBlocks} * kThreads) {
    const auto a = static_cast<double>(widened(x[i])), b = static_cast<double>(widened(y[i]));
    if (b == b) mine = larger(Largest{fabs(a - b), fabs(b)}, mine);
  }
  mine = merge_block<kThreads>(mine, [](const Largest& a, const Largest& b) { return larger(a, b); });
  if (threadIdx.x == 0) largest[blockIdx.x] = mine;
}

}  // namespace

double relative_difference(const Launch& launch, DType type, int64_t n, const void* x, const void* y) {
  if (!is_stored(type) || n == 0) return 0;
  const DeviceMemory memory(kBlocks * sizeof(Largest));
  auto* const of_blocks = static_cast<Largest*>(memory.data());
  dispatch_stored(type, [&]<typename S>(S) {
    enqueue(launch, "find_largest", find_largest<S>, kBlocks, kThreads, 0, n, static_cast<const S*>(x),
            static_cast<const S*>(y), of_blocks);
  });
  std::vector<Largest> found(kBlocks);
  launch.stream->copy_to_host(found.data(), of_blocks, found.size() * sizeof(Largest));
  launch.stream->synchronize();
  Largest all{};
  for (const Largest& of_block : found) all = larger(of_block, all);
  return all.difference == 0 ? 0 : all.difference / all.y;
}

}  // namespace onnx_train::cuda
