// Reference convolution, channels first, by im2col and BLAS. For each image and group the inputs of all windows become
// the columns of a matrix [channels taps, windows], and the three directions are
//     y = w columns,    columns = wᵀ dy scattered back to dx,    dw += dy columnsᵀ.
#include <algorithm>

#include "kernels/cpu/convolution/convolutions.h"
#include "kernels/cpu/products/blas.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/windows.h"

namespace onnx_train::cpu {
namespace {

// out[m, n] = a b, or out + a b. A transposed operand is stored as its transpose.
template <typename T>
void multiply(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const T* a, const T* b, bool accumulate,
              T* out) {
  const GemmShape shape{.m = m,
                        .n = n,
                        .k = k,
                        .a_row = trans_a ? 1 : k,
                        .a_column = trans_a ? m : 1,
                        .b_row = trans_b ? 1 : n,
                        .b_column = trans_b ? k : 1,
                        .y_row = n,
                        .accumulate = accumulate};
  multiply_by_blas(shape, 1, a, b, out);
}

// Calls f(offset in the image, window) for one row of the columns matrix: one channel and one tap, and all windows for
// which the tap is not in the padding.
template <typename F>
void for_each_in_row(const WindowGeometry& g, int64_t row, F&& f) {
  const int64_t k[3] = {row / (g[1].kernel * g[2].kernel) % g[0].kernel, row / g[2].kernel % g[1].kernel,
                        row % g[2].kernel};
  const int64_t plane = row / taps(g) * in_spatial_size(g);
  for (int64_t d = 0; d < g[0].out; ++d) {
    const int64_t z = g[0].at(d, k[0]);
    if (z < 0 || z >= g[0].in) continue;
    for (int64_t h = 0; h < g[1].out; ++h) {
      const int64_t y = g[1].at(h, k[1]);
      if (y < 0 || y >= g[1].in) continue;
      const int64_t line = plane + (z * g[1].in + y) * g[2].in, windows = (d * g[1].out + h) * g[2].out;
      for (int64_t w = 0; w < g[2].out; ++w) {
        const int64_t x = g[2].at(w, k[2]);
        if (x >= 0 && x < g[2].in) f(line + x, windows + w);
      }
    }
  }
}

// columns[channels taps, windows] from image[channels, spatial_size].
template <typename T>
void gather_columns(const WindowGeometry& g, int64_t channels, const T* image, T* columns) {
  const int64_t windows = out_spatial_size(g);
  parallel_for(channels * taps(g), 1, [&](int64_t row, int64_t end) {
    std::fill_n(columns + row * windows, (end - row) * windows, T(0));
    for (; row < end; ++row) {
      T* to = columns + row * windows;
      for_each_in_row(g, row, [&](int64_t element, int64_t window) { to[window] = image[element]; });
    }
  });
}

// image += columns: each element is added to the input position it was read from.
template <typename T>
void scatter_columns(const WindowGeometry& g, int64_t channels, const T* columns, T* image) {
  const int64_t windows = out_spatial_size(g);
  parallel_for(channels, 1, [&](int64_t channel, int64_t end) {
    for (int64_t row = channel * taps(g); row < end * taps(g); ++row) {
      const T* from = columns + row * windows;
      for_each_in_row(g, row, [&](int64_t element, int64_t window) { image[element] += from[window]; });
    }
  });
}

// Sizes that all three directions use.
struct Sizes {
  WindowGeometry geometry;
  int64_t images, groups, in_channels, out_channels;  // channels in one group
  int64_t windows, rows;                              // columns is [rows, windows]
  int64_t x_step, y_step, w_step;                     // elements of one group of one image, and of its weights

  explicit Sizes(const Convolution& c)
      : geometry(make_geometry(c.windows, c.x, c.y)),
        images(c.batch()),
        groups(c.group),
        in_channels(c.in_channels()),
        out_channels(c.out_channels()),
        windows(out_spatial_size(geometry)),
        rows(in_channels * taps(geometry)),
        x_step(in_channels * in_spatial_size(geometry)),
        y_step(out_channels * windows),
        w_step(out_channels * rows) {}

  size_t columns_bytes(DType dtype) const { return static_cast<size_t>(rows * windows) * size_of(dtype); }
};

template <typename T>
void run_forward(const Sizes& s, const T* x, const T* w, const T* bias, T* y, T* columns) {
  for (int64_t i = 0; i < s.images * s.groups; ++i) {
    const int64_t group = i % s.groups;
    T* to = y + i * s.y_step;
    for (int64_t j = 0; j < s.y_step; ++j) to[j] = bias ? bias[group * s.out_channels + j / s.windows] : 0;
    gather_columns(s.geometry, s.in_channels, x + i * s.x_step, columns);
    multiply(false, false, s.out_channels, s.windows, s.rows, w + group * s.w_step, columns, true, to);
  }
}

template <typename T>
void run_input_gradient(const Sizes& s, const T* dy, const T* w, T* dx, T* columns) {
  std::fill_n(dx, s.images * s.groups * s.x_step, T(0));
  for (int64_t i = 0; i < s.images * s.groups; ++i) {
    multiply(true, false, s.rows, s.windows, s.out_channels, w + i % s.groups * s.w_step, dy + i * s.y_step, false,
             columns);
    scatter_columns(s.geometry, s.in_channels, columns, dx + i * s.x_step);
  }
}

template <typename T>
void run_weight_gradient(const Sizes& s, const T* x, const T* dy, T* dw, T* db, T* columns) {
  std::fill_n(dw, s.groups * s.w_step, T(0));
  if (db) std::fill_n(db, s.groups * s.out_channels, T(0));
  for (int64_t i = 0; i < s.images * s.groups; ++i) {
    const int64_t group = i % s.groups;
    const T* from = dy + i * s.y_step;
    gather_columns(s.geometry, s.in_channels, x + i * s.x_step, columns);
    multiply(false, true, s.out_channels, s.rows, s.windows, from, columns, true, dw + group * s.w_step);
    for (int64_t j = 0; db && j < s.y_step; ++j) db[group * s.out_channels + j / s.windows] += from[j];
  }
}

}  // namespace

Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const Forward& f) {
  const Sizes s(c);
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[=](const Launch& launch) {
              run_forward(s, launch.in<T>(f.x), launch.in<T>(f.w), f.bias < 0 ? nullptr : launch.in<T>(f.bias),
                          launch.out<T>(), launch.scratch<T>());
            },
            s.columns_bytes(spec.in_type()),
            {}};
  });
}

Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const InputGradient& f) {
  const Sizes s(c);
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[=](const Launch& launch) {
              run_input_gradient(s, launch.in<T>(f.dy), launch.in<T>(f.w), launch.out<T>(), launch.scratch<T>());
            },
            s.columns_bytes(spec.in_type()),
            {}};
  });
}

Prepared prepare_reference(const NodeSpec& spec, const Convolution& c, const WeightGradient& f) {
  const Sizes s(c);
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    using T = decltype(zero);
    return {[=](const Launch& launch) {
              run_weight_gradient(s, launch.in<T>(f.x), launch.in<T>(f.dy), launch.out<T>(),
                                  f.bias ? launch.out<T>(1) : nullptr, launch.scratch<T>());
            },
            s.columns_bytes(spec.in_type()),
            {}};
  });
}

}  // namespace onnx_train::cpu
