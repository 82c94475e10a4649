// The windows of a pool, for the kernels of every device. Plain values and pure functions; any thread. Functions that
// read a node throw Error that names it if its windows do not fit.
#pragma once

#include "kernels/geometry/windows.h"
#include "kernels/kernel.h"

namespace onnx_train {

// A pool over `planes` planes; a plane is one channel of one image.
struct Pooling {
  WindowGeometry geometry;
  int64_t planes = 0;
  bool include_pad = false;  // averages count padding
};

// Returns the pool of the node from x to y; both shapes have channels after the batch.
Pooling find_pooling(const NodeSpec& spec, const Shape& x, const Shape& y);

inline bool has_spatial_axes(const Shape& shape) { return shape.size() >= 3 && shape.size() <= 5; }

// The elements that a window covers along one axis: `count` elements from `first` on, `step` apart.
struct Span {
  int64_t first, count, step;
  ONNX_TRAIN_HD int64_t end() const { return first + count * step; }
};

ONNX_TRAIN_HD inline Span span_of(const WindowAxis& axis, int64_t o) {
  const int64_t first = axis.first_tap(o), count = std::max<int64_t>(0, axis.last_tap(o, axis.in) - first);
  return {count > 0 ? axis.at(o, first) : 0, count, axis.dilation};
}

// The number of elements that an average counts for window o. Padding counts if requested, but not the positions after
// it that a window covers because of ceil_mode.
ONNX_TRAIN_HD inline int64_t averaged_count(const WindowAxis& axis, int64_t o, bool include_pad) {
  return include_pad ? axis.last_tap(o, axis.in + axis.end) : span_of(axis, o).count;
}

// Calls f(element of the plane) for every element that a window covers.
template <typename F>
[[gnu::always_inline]] ONNX_TRAIN_HD inline void for_each_element(const WindowGeometry& g, const Span& d, const Span& h,
                                                                  const Span& w, F&& f) {
  for (int64_t z = d.first; z < d.end(); z += d.step) {
    for (int64_t y = h.first; y < h.end(); y += h.step) {
      const int64_t line = (z * g[1].in + y) * g[2].in;
      for (int64_t x = w.first; x < w.end(); x += w.step) f(line + x);
    }
  }
}

// Position of the first maximum of a window, or of its last NaN; -1 if the window covers only padding. `plane[i]` is an
// element of the plane.
template <typename Plane>
ONNX_TRAIN_HD inline int64_t find_largest(const WindowGeometry& g, const Plane& plane, const Span& d, const Span& h,
                                          const Span& w) {
  int64_t best = -1;
  for_each_element(g, d, h, w, [&](int64_t i) {
    if (best < 0 || plane[i] > plane[best] || plane[i] != plane[i]) best = i;
  });
  return best;
}

// The index of an element if its plane is stored column-major (MaxPool's storage_order).
ONNX_TRAIN_HD inline int64_t by_columns(const WindowGeometry& g, int64_t element) {
  const int64_t x = element % g[2].in, y = element / g[2].in % g[1].in, z = element / (g[2].in * g[1].in);
  return (x * g[1].in + y) * g[0].in + z;
}

// MaxUnpool: the shape [N, C, D...] in which indices count; D = (size of x - 1) stride + kernel - padding on each
// spatial axis. The output `y` is at least as large; on every axis this shape is its beginning.
Shape unpooled_shape(const NodeSpec& spec, const Shape& y);

// Col2Im: the windows of an image y [N, C, sizes..] whose elements x [N, C taps, windows] holds.
WindowGeometry column_geometry(const NodeSpec& spec);
bool supports_columns(const NodeSpec& spec);

}  // namespace onnx_train
