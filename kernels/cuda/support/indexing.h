// Maps positions in row-major order to offsets in several strided layouts: the part of a node's geometry that a kernel
// gets as a parameter. Built by the host, read by all threads.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/cuda/support/axes.h"
#include "kernels/cuda/support/gpu.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

// Division by a positive number that the host knows. If dividend and divisor are below 2³¹, it is one multiplication
// (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
class Divider {
 public:
  Divider() = default;
  explicit Divider(int64_t divisor) : divisor_(static_cast<uint64_t>(divisor)) {
    if (divisor >= kSmall) return;
    shift_ = static_cast<uint32_t>(std::bit_width(divisor_ - 1));
    factor_ = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor_) / divisor_ + 1);
  }

  __device__ int64_t quotient(int64_t n) const {
    const auto dividend = static_cast<uint64_t>(n);
    if ((dividend | divisor_) >= kSmall) return static_cast<int64_t>(dividend / divisor_);
    const auto small = static_cast<uint32_t>(dividend);
    return (__umulhi(small, factor_) + small) >> shift_;
  }
  __device__ int64_t divisor() const { return static_cast<int64_t>(divisor_); }

 private:
  static constexpr int64_t kSmall = int64_t{1} << 31;
  uint64_t divisor_ = 1;
  uint32_t factor_ = 1, shift_ = 0;
};

inline constexpr int kMaxRank = 12;  // after merging axes that are traversed alike

template <int kLayouts>
struct Indexing {
  int rank = 0;
  Divider sizes[kMaxRank];  // innermost first
  int64_t strides[kMaxRank][kLayouts] = {};

  // Axes from the outermost to the innermost, with sizes above 0. Throws Error if there are more than kMaxRank.
  explicit Indexing(const std::vector<IndexedAxis<kLayouts>>& axes) : rank(static_cast<int>(axes.size())) {
    if (rank > kMaxRank) fail("a tensor with more than ", kMaxRank, " axes that cannot be merged");
    for (int k = 0; k < rank; ++k) {
      const IndexedAxis<kLayouts>& axis = axes[static_cast<size_t>(rank - 1 - k)];
      sizes[k] = Divider(axis.size);
      for (int l = 0; l < kLayouts; ++l) strides[k][l] = axis.strides[l];
    }
  }

  // Adds the offsets of position `i` to `offsets`.
  __device__ void add_offsets(int64_t i, int64_t (&offsets)[kLayouts]) const {
    for (int k = 0; k < rank; ++k) {
      const int64_t rest = k + 1 < rank ? sizes[k].quotient(i) : 0;
      const int64_t at = i - rest * sizes[k].divisor();
      for (int l = 0; l < kLayouts; ++l) offsets[l] += at * strides[k][l];
      i = rest;
    }
  }
};

}  // namespace onnx_train::cuda
