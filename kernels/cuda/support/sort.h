// A stable sort of keys together with their positions, in device memory: equal keys keep their order, so that sums in
// this order have the same bits in every run. A plain value that describes a sort; any thread.
//
// sort.cu calls CUB. On the host, tests/cuda_on_host/sort.cc stands in its place.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

// The number of bits of the numbers below `end`.
inline int bits_below(int64_t end) { return std::bit_width(static_cast<uint64_t>(end > 0 ? end - 1 : 0)); }

class Sort {
 public:
  // Sorts `count` keys by their `bits` lowest bits, on the current device. Throws Error if CUDA fails.
  Sort(int64_t count, int bits);

  struct Result {
    uint64_t* keys;
    int64_t* places;  // position of each key before the sort
  };
  int64_t count() const { return count_; }
  // Bytes of workspace.
  size_t workspace() const { return static_cast<size_t>(3 * count_) * sizeof(int64_t) + library_bytes_; }
  // Enqueues the sort of `keys`; the result is stored there and in the workspace, which is aligned to 8 bytes. If
  // `places` is given, it is sorted instead of the positions, and overwritten, too.
  Result run(const Launch& launch, uint64_t* keys, void* workspace, int64_t* places = nullptr) const;

 private:
  int64_t count_;
  int bits_;
  size_t library_bytes_ = 0;
};

}  // namespace onnx_train::cuda
