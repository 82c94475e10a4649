// MaxPool, AveragePool and their gradients on images that lie channels last (functions/channels_last.cc): each window
// is worked on for a block of channels at once, which are vectors. Elements meet in the order of the kernels that work
// plane by plane (pooling.cc), so the results are theirs, bit for bit.
#include <algorithm>
#include <limits>

#include "kernels/cpu/multiversion.h"
#include "kernels/cpu/pooling.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kBlock = 64;  // channels that are worked on together

// A window of one image: its first channel of a block lies at `x`; neighbouring elements are `channels` apart.
struct Window {
  const Grid& grid;
  const Span &d, &h, &w;
  int64_t channels;

  bool empty() const { return d.count * h.count * w.count == 0; }
  // Calls f(offset) for each element.
  template <typename F>
  [[gnu::always_inline]] void for_each(const F& f) const {
    for_each_element(
        grid, d, h, w, [&](int64_t element) __attribute__((always_inline)) { f(element * channels); });
  }
};

// y = the largest element, or the last NaN
template <typename T>
ONNX_TRAIN_MULTIVERSION void find_maximum(const T* __restrict x, const Window& window, int64_t n, T* __restrict y) {
  for (int64_t c = 0; c < n; ++c) y[c] = std::numeric_limits<T>::lowest();
  bool first = true;
  window.for_each([&](int64_t offset) __attribute__((always_inline)) {
    const T* __restrict from = x + offset;
    if (first) {
      for (int64_t c = 0; c < n; ++c) y[c] = from[c];
    } else {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) y[c] = from[c] > y[c] || from[c] != from[c] ? from[c] : y[c];
    }
    first = false;
  });
}

// dx += dy at the window's first largest element, or its last NaN
template <typename T>
ONNX_TRAIN_MULTIVERSION void add_to_maximum(const T* __restrict x, const T* __restrict dy, const Window& window,
                                            int64_t n, T* __restrict dx) {
  T best[kBlock];
  int32_t at[kBlock];
  int32_t tap = 0;
  window.for_each([&](int64_t offset) __attribute__((always_inline)) {
    const T* __restrict from = x + offset;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const bool better = tap == 0 || from[c] > best[c] || from[c] != from[c];
      best[c] = better ? from[c] : best[c];
      at[c] = better ? tap : at[c];
    }
    ++tap;
  });
  tap = 0;
  window.for_each([&](int64_t offset) __attribute__((always_inline)) {
    T* __restrict to = dx + offset;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) to[c] += at[c] == tap ? dy[c] : T{0};
    ++tap;
  });
}

// y = Σ x / count
template <typename T>
ONNX_TRAIN_MULTIVERSION void find_mean(const T* __restrict x, const Window& window, T count, int64_t n,
                                       T* __restrict y) {
  for (int64_t c = 0; c < n; ++c) y[c] = 0;
  window.for_each([&](int64_t offset) __attribute__((always_inline)) {
    const T* __restrict from = x + offset;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) y[c] += from[c];
  });
  for (int64_t c = 0; c < n; ++c) y[c] /= count;
}

// dx += dy / count
template <typename T>
ONNX_TRAIN_MULTIVERSION void add_share(const T* __restrict dy, const Window& window, T count, int64_t n,
                                       T* __restrict dx) {
  T share[kBlock];
  for (int64_t c = 0; c < n; ++c) share[c] = dy[c] / count;
  window.for_each([&](int64_t offset) __attribute__((always_inline)) {
    T* __restrict to = dx + offset;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) to[c] += share[c];
  });
}

// ---- All windows

// Images of a pool, cut into blocks of channels.
struct Images {
  Pool pool;
  int64_t batch, channels;

  Images(const NodeSpec& spec, Shape x, Shape y) : batch(x[0]), channels(x.back()) {
    for (Shape* shape : {&x, &y}) std::rotate(shape->begin() + 1, shape->end() - 1, shape->end());
    pool = make_pool(spec, x, y);
  }

  // Calls f(place in the input image, place in the output image, channels) for each block, on all threads.
  template <typename F>
  void for_each_block(const F& f) const {
    const int64_t blocks = (channels + kBlock - 1) / kBlock;
    const int64_t in = points_in(pool.grid) * channels, out = points_out(pool.grid) * channels;
    const int64_t work = points_out(pool.grid) * taps(pool.grid) * std::min(channels, kBlock);
    parallel_for(batch * blocks, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, work)),
                 [&](int64_t i, int64_t end) {
                   for (; i < end; ++i) {
                     const int64_t first = i % blocks * kBlock, image = i / blocks;
                     f(image * in + first, image * out + first, std::min(kBlock, channels - first));
                   }
                 });
  }

  // Calls f(window, place of its output, elements an average counts) for each window of a block.
  template <typename F>
  void for_each_window(const F& f) const {
    cpu::for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t count) {
      f(Window{pool.grid, d, h, w, channels}, window * channels, std::max<int64_t>(count, 1));
    });
  }

  // Zeros in one block of an input image.
  template <typename T>
  void clear(T* image, int64_t n) const {
    for (int64_t p = 0; p < points_in(pool.grid); ++p) std::fill_n(image + p * channels, n, T{0});
  }
};

template <typename T>
void max_pool(const Images& images, const T* x, T* y) {
  images.for_each_block([&](int64_t in, int64_t out, int64_t n) {
    images.for_each_window(
        [&](const Window& window, int64_t to, int64_t) { find_maximum(x + in, window, n, y + out + to); });
  });
}

template <typename T>
void max_pool_grad(const Images& images, const T* dy, const T* x, T* dx) {
  images.for_each_block([&](int64_t in, int64_t out, int64_t n) {
    images.clear(dx + in, n);
    images.for_each_window([&](const Window& window, int64_t from, int64_t) {
      if (!window.empty()) add_to_maximum(x + in, dy + out + from, window, n, dx + in);
    });
  });
}

template <typename T>
void average_pool(const Images& images, const T* x, T* y) {
  images.for_each_block([&](int64_t in, int64_t out, int64_t n) {
    images.for_each_window([&](const Window& window, int64_t to, int64_t count) {
      find_mean(x + in, window, static_cast<T>(count), n, y + out + to);
    });
  });
}

template <typename T>
void average_pool_grad(const Images& images, const T* dy, T* dx) {
  images.for_each_block([&](int64_t in, int64_t out, int64_t n) {
    images.clear(dx + in, n);
    images.for_each_window([&](const Window& window, int64_t from, int64_t count) {
      add_share(dy + out + from, window, static_cast<T>(count), n, dx + in);
    });
  });
}

// ---- Rows

// Runs `run(images, args, T{})` for the pool from x to y.
template <typename Run>
Prepared prepare(const NodeSpec& spec, const Shape& x, const Shape& y, const Run& run) {
  const Images images(spec, x, y);
  return dispatch_float(spec.in_type(), [&](auto zero) -> Prepared {
    return {[images, run, zero](const Args& args) { run(images, args, zero); }, 0, {}};
  });
}

Prepared prepare_max_pool(const NodeSpec& spec) {
  return prepare(spec, spec.in_shape(), spec.out_shape(), []<typename T>(const Images& images, const Args& args, T) {
    max_pool(images, args.in<T>(0), args.out<T>());
  });
}

Prepared prepare_max_pool_grad(const NodeSpec& spec) {
  if (!spec.one_type(2) || spec.out_shape() != spec.in_shape(1))
    fail(spec.node().label(), ": dx must be as large as x");
  return prepare(spec, spec.in_shape(1), spec.in_shape(0), []<typename T>(const Images& images, const Args& args, T) {
    max_pool_grad(images, args.in<T>(0), args.in<T>(1), args.out<T>());
  });
}

Prepared prepare_average_pool(const NodeSpec& spec) {
  return prepare(spec, spec.in_shape(), spec.out_shape(), []<typename T>(const Images& images, const Args& args, T) {
    average_pool(images, args.in<T>(0), args.out<T>());
  });
}

Prepared prepare_average_pool_grad(const NodeSpec& spec) {
  return prepare(spec, spec.out_shape(), spec.in_shape(0), []<typename T>(const Images& images, const Args& args, T) {
    average_pool_grad(images, args.in<T>(0), args.out<T>());
  });
}

bool supports(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && has_spatial_axes(spec.in_shape()) && spec.one_type(1);
}

}  // namespace

std::vector<Kernel> channels_last_pooling_kernels() {
  return {
      {"ChannelsLastMaxPool", supports, prepare_max_pool, kDomain},
      {"ChannelsLastMaxPoolGrad", supports, prepare_max_pool_grad, kDomain},
      {"ChannelsLastAveragePool", supports, prepare_average_pool, kDomain},
      {"ChannelsLastAveragePoolGrad", supports, prepare_average_pool_grad, kDomain},
  };
}

}  // namespace onnx_train::cpu
