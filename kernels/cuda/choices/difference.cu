#include "kernels/cuda/choices/difference.h"

#include <cmath>
#include <vector>

#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/cuda/support/warp.h"

namespace onnx_train::cuda {
namespace {

constexpr unsigned kBlocks = 256;

struct Squares {
  double of_difference, of_y;
};

// One pair of sums for each block.
template <typename S>
__global__ void sum_squares_of_difference(int64_t n, const S* x, const S* y, Squares* sums) {
  Squares mine{0, 0};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{kBlocks} * kThreads) {
    const auto a = static_cast<double>(widened(x[i])), b = static_cast<double>(widened(y[i]));
    mine.of_difference += (a - b) * (a - b);
    mine.of_y += b * b;
  }
  mine = merge_block<kThreads>(mine, [](const Squares& a, const Squares& b) {
    return Squares{a.of_difference + b.of_difference, a.of_y + b.of_y};
  });
  if (threadIdx.x == 0) sums[blockIdx.x] = mine;
}

}  // namespace

double relative_difference(const Launch& launch, DType type, int64_t n, const void* x, const void* y) {
  if (!is_stored(type) || n == 0) return 0;
  const DeviceMemory memory(kBlocks * sizeof(Squares));
  auto* const sums = static_cast<Squares*>(memory.data());
  dispatch_stored(type, [&]<typename S>(S) {
    enqueue(launch, "sum_squares_of_difference", sum_squares_of_difference<S>, kBlocks, kThreads, 0, n,
            static_cast<const S*>(x), static_cast<const S*>(y), sums);
  });
  std::vector<Squares> found(kBlocks);
  launch.stream->copy_to_host(found.data(), sums, found.size() * sizeof(Squares));
  launch.stream->synchronize();
  Squares all{0, 0};
  for (const Squares& of_block : found) {
    all.of_difference += of_block.of_difference;
    all.of_y += of_block.of_y;
  }
  return all.of_difference == 0 ? 0 : std::sqrt(all.of_difference / all.of_y);
}

}  // namespace onnx_train::cuda
