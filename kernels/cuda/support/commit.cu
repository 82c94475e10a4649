#include "kernels/cuda/support/commit.h"

#include <algorithm>

#include "kernels/cuda/support/gpu.h"
#include "kernels/cuda/support/runtime.h"

namespace onnx_train::cuda {
namespace {

constexpr size_t kMostTransfers = 64;  // transfers per launch, passed as kernel parameters
constexpr int kThreads = 256;
constexpr size_t kBytesPerBlock = 64 << 10;

struct Transfers {
  Transfer all[kMostTransfers];
};

template <typename T>
__device__ void copy_elements(const Transfer& transfer) {
  const T* const from = static_cast<const T*>(transfer.from);
  T* const to = static_cast<T*>(transfer.to);
  const size_t n = transfer.bytes / sizeof(T);
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += size_t{gridDim.x} * kThreads)
    to[i] = from[i];
}

// One row of blocks per transfer.
__global__ void commit_kernel(Transfers transfers, const Fault* fault) {
  if (fault->node != 0) return;
  const Transfer& transfer = transfers.all[blockIdx.y];
  const size_t bits = reinterpret_cast<size_t>(transfer.to) | reinterpret_cast<size_t>(transfer.from) | transfer.bytes;
  if (bits % sizeof(uint4) == 0) {
    copy_elements<uint4>(transfer);
  } else {
    copy_elements<unsigned char>(transfer);
  }
}

}  // namespace

void enqueue_commit(const std::vector<Transfer>& transfers, const Fault* fault, cudaStream_t stream) {
  for (size_t first = 0; first < transfers.size(); first += kMostTransfers) {
    const size_t count = std::min(transfers.size() - first, kMostTransfers);
    Transfers some = {};
    size_t most = 1;
    for (size_t i = 0; i < count; ++i) {
      some.all[i] = transfers[first + i];
      most = std::max(most, some.all[i].bytes);
    }
    const size_t blocks = std::min<size_t>((most + kBytesPerBlock - 1) / kBytesPerBlock, 1024);
    check(gpu::launch(commit_kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), kThreads, 0,
                      stream, some, fault),
          "commit_kernel");
  }
}

}  // namespace onnx_train::cuda
