// Col2Im: adds the elements of windows to the places of an image that they were read from.
#include "kernels/cpu/pooling/pooling.h"
#include "kernels/dispatch.h"

namespace onnx_train::cpu {
namespace {

// The windows along an axis that read a place of the image, not padding, at `tap`.
struct WindowSpan {
  int64_t first, last;

  WindowSpan(const WindowAxis& axis, int64_t tap) {
    const int64_t from = -axis.at(0, tap), room = axis.in - 1 + from;
    first = from <= 0 ? 0 : (from + axis.stride - 1) / axis.stride;
    last = room < 0 ? 0 : std::min(axis.out, room / axis.stride + 1);
  }
};

// x: [taps, windows] of one channel of one image, y: its places. Each place adds its taps in order.
template <typename T>
void add_columns(const WindowGeometry& g, const T* x, T* y) {
  const auto& [depth, height, width] = g;
  std::fill_n(y, in_spatial_size(g), T{0});
  for (int64_t tap = 0; tap < taps(g); ++tap, x += out_spatial_size(g)) {
    const int64_t k = tap % width.kernel, j = tap / width.kernel % height.kernel,
                  i = tap / width.kernel / height.kernel;
    const WindowSpan planes(depth, i), rows(height, j), columns(width, k);
    for (int64_t a = planes.first; a < planes.last; ++a) {
      for (int64_t b = rows.first; b < rows.last; ++b) {
        const T* from = x + (a * height.out + b) * width.out;
        T* to = y + (depth.at(a, i) * height.in + height.at(b, j)) * width.in;
        for (int64_t c = columns.first; c < columns.last; ++c) to[width.at(c, k)] += from[c];
      }
    }
  }
}

Prepared prepare_col2im(const NodeSpec& spec) {
  return dispatch_float(spec.in_type(), [&]<typename T>(T) -> Prepared {
    const WindowGeometry g = column_geometry(spec);
    const int64_t planes = spec.out_shape()[0] * spec.out_shape()[1];
    const int64_t in = taps(g) * out_spatial_size(g), out = in_spatial_size(g);
    return {[=](const Launch& launch) {
      parallel_for(planes, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, in + out)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       add_columns(g, launch.in<T>(0) + i * in, launch.out<T>() + i * out);
                     }
                   });
    }};
  });
}

}  // namespace

std::vector<Kernel> col2im_kernels() { return {{"Col2Im", supports_columns, prepare_col2im}}; }

}  // namespace onnx_train::cpu
