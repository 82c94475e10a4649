// The windows of a pool, computed once when its kernel is prepared. A Pool is immutable afterwards; any thread may read
// it.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/pools.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// A pool with the span of every window along each axis, and the number of elements that an average counts.
struct Pool : Pooling {
  std::array<std::vector<Span>, 3> spans;
  std::array<std::vector<int64_t>, 3> counts;

  int64_t grain() const {
    return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, out_spatial_size(geometry) * taps(geometry)));
  }
};

// The pool of the node from x to y; both shapes have channels after the batch. Throws Error when the node's windows do
// not fit.
Pool make_pool(const NodeSpec& spec, const Shape& x, const Shape& y);

// Calls f(window, depth span, height span, width span, elements an average counts) for each window of a plane.
template <typename F>
void for_each_window(const Pool& pool, F&& f) {
  const auto& [depth, height, width] = pool.spans;
  int64_t window = 0;
  for (size_t d = 0; d < depth.size(); ++d) {
    for (size_t h = 0; h < height.size(); ++h) {
      const int64_t rows = pool.counts[0][d] * pool.counts[1][h];
      for (size_t w = 0; w < width.size(); ++w) f(window++, depth[d], height[h], width[w], rows * pool.counts[2][w]);
    }
  }
}

// Kernel rows of channels-last max and average pools and their gradients (pooling_channels_last.cc).
std::vector<Kernel> channels_last_pooling_kernels();
// Kernel rows of MaxUnpool (max_unpool.cc).
std::vector<Kernel> unpooling_kernels();
// Kernel rows of Col2Im (col2im.cc).
std::vector<Kernel> col2im_kernels();

}  // namespace onnx_train::cpu
