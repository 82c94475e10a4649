// A stable sort of keys together with their positions, in device memory: equal keys keep their order, so that sums in
// this order have the same bits in every run. A plain value that describes a sort; any thread.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/support/launch.h"

namespace onnx_train::cuda {

// The number of bits of the numbers below `end`.
inline int bits_below(int64_t end) { return std::bit_width(static_cast<uint64_t>(end > 0 ? end - 1 : 0)); }

class Sort {
 public:
  // Sorts `count` keys by their `bits` lowest bits.
  Sort(int64_t count, int bits);

  struct Result {
    uint64_t* keys;
    int64_t* places;  // position of each key before the sort
  };
  int64_t count() const { return count_; }
  // Bytes of workspace, a multiple of 8.
  size_t workspace() const;
  // Enqueues the sort of `keys`; the result is stored there and in the workspace. If `places` is given, it is sorted
  // instead of the positions, and overwritten, too.
  Result run(const Launch& launch, uint64_t* keys, void* workspace, int64_t* places = nullptr) const;

 private:
  int64_t count_, blocks_;
  int passes_;
};

}  // namespace onnx_train::cuda
