// The geometry of the windows of a convolution or pool: three spatial axes; tensors with fewer axes have leading axes
// of size 1. Plain values and pure functions, for the kernels of every device; any thread.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/math/host_device.h"
#include "onnx_passes/operators/windows.h"

namespace onnx_train {

struct WindowAxis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, begin = 0, end = 0;  // begin, end: padding

  // The position that tap k of window o reads; it is padding unless in [0, in).
  ONNX_TRAIN_HD int64_t at(int64_t o, int64_t k) const { return o * stride - begin + k * dilation; }
  // The taps [first, last) of window o that read positions in [from, to).
  ONNX_TRAIN_HD int64_t first_tap(int64_t o, int64_t from = 0) const {
    return std::clamp<int64_t>((from - at(o, 0) + dilation - 1) / dilation, 0, kernel);
  }
  ONNX_TRAIN_HD int64_t last_tap(int64_t o, int64_t to) const {
    return at(o, 0) >= to ? 0 : std::min(kernel, (to - at(o, 0) + dilation - 1) / dilation);
  }
  // Only windows in [first, last) can read position q; `reads` tells whether window o in this range does.
  ONNX_TRAIN_HD int64_t first_window(int64_t q) const {
    const int64_t way = q + begin - (kernel - 1) * dilation;
    return way <= 0 ? 0 : (way + stride - 1) / stride;
  }
  ONNX_TRAIN_HD int64_t last_window(int64_t q) const { return std::min(out, (q + begin) / stride + 1); }
  ONNX_TRAIN_HD bool reads(int64_t o, int64_t q) const { return dilation == 1 || (q - at(o, 0)) % dilation == 0; }
};

using WindowGeometry = std::array<WindowAxis, 3>;

// `in` and `out` are the shapes of whole tensors: batch, channels, spatial axes.
WindowGeometry make_geometry(const Windows& windows, const Shape& in, const Shape& out);

ONNX_TRAIN_HD inline int64_t in_spatial_size(const WindowGeometry& g) { return g[0].in * g[1].in * g[2].in; }
ONNX_TRAIN_HD inline int64_t out_spatial_size(const WindowGeometry& g) { return g[0].out * g[1].out * g[2].out; }
ONNX_TRAIN_HD inline int64_t taps(const WindowGeometry& g) { return g[0].kernel * g[1].kernel * g[2].kernel; }

// The number of (window, tap) pairs that read a position, not padding.
inline int64_t count_valid_taps(const WindowGeometry& g) {
  int64_t all = 1;
  for (const WindowAxis& axis : g) {
    int64_t of_axis = 0;
    for (int64_t o = 0; o < axis.out; ++o)
      of_axis += std::max<int64_t>(0, axis.last_tap(o, axis.in) - axis.first_tap(o));
    all *= of_axis;
  }
  return all;
}

// Returns the input position that window p reads at `tap`; -1 in the padding.
ONNX_TRAIN_HD inline int64_t element_of(const WindowGeometry& g, int64_t p, int64_t tap) {
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

// Returns the window that reads position q at `tap`; -1 if there is none.
ONNX_TRAIN_HD inline int64_t window_of(const WindowGeometry& g, int64_t q, int64_t tap) {
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

// Returns the input position that contributes to output position i at `tap`, or -1. For the convolution it is the
// position that window i reads; for its input gradient, the window that reads position i.
ONNX_TRAIN_HD inline int64_t input_index(const WindowGeometry& g, bool gradient, int64_t i, int64_t tap) {
  return gradient ? window_of(g, i, tap) : element_of(g, i, tap);
}

}  // namespace onnx_train
