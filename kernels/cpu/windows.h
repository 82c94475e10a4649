// The windows of a convolution or pool as loops see them: three spatial axes, the leading ones of size 1 where the
// tensor has fewer.
#pragma once

#include <algorithm>
#include <array>

#include "onnx_passes/ir/windows.h"

namespace onnx_train::cpu {

struct WindowAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, begin = 0, end = 0;  // begin, end: padding

  // Where window o reads with its tap k; in the padding unless inside [0, in).
  int64_t at(int64_t o, int64_t k) const { return o * stride - begin + k * dilation; }
  // The taps [first, last) of window o that lie in [from, to).
  int64_t first_tap(int64_t o, int64_t from = 0) const {
    return std::clamp<int64_t>((from - at(o, 0) + dilation - 1) / dilation, 0, kernel);
  }
  int64_t last_tap(int64_t o, int64_t to) const {
    return at(o, 0) >= to ? 0 : std::min(kernel, (to - at(o, 0) + dilation - 1) / dilation);
  }
};

using Grid = std::array<WindowAxis, 3>;

// `in` and `out` are shapes of whole tensors, batch and channels first.
Grid make_grid(const Windows& windows, const Shape& in, const Shape& out);

inline int64_t points_in(const Grid& g) { return g[0].in * g[1].in * g[2].in; }
inline int64_t points_out(const Grid& g) { return g[0].out * g[1].out * g[2].out; }
inline int64_t taps(const Grid& g) { return g[0].kernel * g[1].kernel * g[2].kernel; }

// How many windows and taps lead to an element, not to the padding.
inline int64_t meetings(const Grid& g) {
  int64_t all = 1;
  for (const WindowAxis& axis : g) {
    int64_t of_axis = 0;
    for (int64_t o = 0; o < axis.out; ++o)
      of_axis += std::max<int64_t>(0, axis.last_tap(o, axis.in) - axis.first_tap(o));
    all *= of_axis;
  }
  return all;
}

// The element that window p reads with `tap`; -1 in the padding.
inline int64_t element_of(const Grid& g, int64_t p, int64_t tap) {
  int64_t element = 0, size = 1;
  for (size_t i = g.size(); i-- > 0;) {
    const int64_t at = g[i].at(p % g[i].out, tap % g[i].kernel);
    if (at < 0 || at >= g[i].in) return -1;
    element += at * size;
    size *= g[i].in;
    p /= g[i].out;
    tap /= g[i].kernel;
  }
  return element;
}

// The window that reads element q with `tap`; -1 when there is none.
inline int64_t window_of(const Grid& g, int64_t q, int64_t tap) {
  int64_t window = 0, size = 1;
  for (size_t i = g.size(); i-- > 0;) {
    const int64_t way = q % g[i].in - g[i].at(0, tap % g[i].kernel);
    if (way < 0 || way % g[i].stride != 0 || way / g[i].stride >= g[i].out) return -1;
    window += way / g[i].stride * size;
    size *= g[i].out;
    q /= g[i].in;
    tap /= g[i].kernel;
  }
  return window;
}

// What `i` meets at `tap`, or -1: of a convolution the element that window i reads, of its gradient the window that
// reads element i.
inline int64_t met_by(const Grid& g, bool gradient, int64_t i, int64_t tap) {
  return gradient ? window_of(g, i, tap) : element_of(g, i, tap);
}

}  // namespace onnx_train::cpu
