// The windows of a pool, computed once when its kernel is prepared. A Pool is immutable afterwards; any thread may read
// it.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/windows.h"
#include "kernels/kernel.h"

namespace onnx_train::cpu {

// The elements that a window covers along one axis: `count` elements from `first` on, `step` apart.
struct Span {
  int64_t first, count, step;
  int64_t end() const { return first + count * step; }
};

// A pool over `planes` planes: the span of every window along each axis, and the number of elements that an average
// counts.
struct Pool {
  WindowGeometry geometry;
  int64_t planes = 0;
  std::array<std::vector<Span>, 3> spans;
  std::array<std::vector<int64_t>, 3> counts;

  int64_t grain() const {
    return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, out_spatial_size(geometry) * taps(geometry)));
  }
};

inline bool has_spatial_axes(const Shape& shape) { return shape.size() >= 3 && shape.size() <= 5; }

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

// Calls f(element of the plane) for every element that a window covers.
template <typename F>
[[gnu::always_inline]] inline void for_each_element(const WindowGeometry& g, const Span& d, const Span& h,
                                                    const Span& w, F&& f) {
  for (int64_t z = d.first; z < d.end(); z += d.step) {
    for (int64_t y = h.first; y < h.end(); y += h.step) {
      const int64_t line = (z * g[1].in + y) * g[2].in;
      for (int64_t x = w.first; x < w.end(); x += w.step) f(line + x);
    }
  }
}

// Kernel rows of channels-last max and average pools and their gradients (pooling_channels_last.cc).
std::vector<Kernel> channels_last_pooling_kernels();
// Those of MaxUnpool (max_unpool.cc).
std::vector<Kernel> unpooling_kernels();

}  // namespace onnx_train::cpu
