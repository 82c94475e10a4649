// MaxPool, AveragePool and their gradients on channels-last images (kernels/functions/channels_last.cc). Each window is
// computed for a block of channels at once, as vectors. The elements of a window are combined in the order of the
// channels-first kernels (pooling.cc), so the results are equal bit for bit.
//
// Images may be bfloat16. Outputs are computed in float32 and rounded once. Gradients, to which several windows add,
// are accumulated in a float32 copy of a block of channels and rounded from there.
#include <algorithm>
#include <limits>

#include "kernels/cpu/pooling/pooling.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/cpu/support/stored.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kBlock = 64;  // channels computed together

// A window of one image.
struct Window {
  const WindowGeometry& geometry;
  const Span &d, &h, &w;

  bool empty() const { return d.count * h.count * w.count == 0; }
  template <typename F>
  [[gnu::always_inline]] void for_each(const F& f) const {
    for_each_element(geometry, d, h, w, f);
  }
};

// Elements of one channel: neighbouring positions are `channels` elements apart.
template <typename T>
struct Plane {
  T* __restrict first;
  int64_t channels;
  T* at(int64_t element) const { return first + element * channels; }
};

// y = the maximum, or the last NaN.
template <typename X, typename T>
void find_maximum(const Plane<const X> x, const Window& window, int64_t n, T* __restrict y) {
  for (int64_t c = 0; c < n; ++c) y[c] = std::numeric_limits<T>::lowest();
  bool first = true;
  window.for_each([&](int64_t element) __attribute__((always_inline)) {
    const X* __restrict from = x.at(element);
    if (first) {
      for (int64_t c = 0; c < n; ++c) y[c] = load(from[c]);
    } else {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        const T value = load(from[c]);
        y[c] = value > y[c] || value != value ? value : y[c];
      }
    }
    first = false;
  });
}

// dx += dy at the window's first maximum, or at its last NaN.
template <typename X, typename T>
void add_to_maximum(const Plane<const X> x, const X* __restrict dy, const Window& window, int64_t n,
                    const Plane<T> dx) {
  T best[kBlock];
  int32_t at[kBlock];
  int32_t tap = 0;
  window.for_each([&](int64_t element) __attribute__((always_inline)) {
    const X* __restrict from = x.at(element);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const T value = load(from[c]);
      const bool better = tap == 0 || value > best[c] || value != value;
      best[c] = better ? value : best[c];
      at[c] = better ? tap : at[c];
    }
    ++tap;
  });
  tap = 0;
  window.for_each([&](int64_t element) __attribute__((always_inline)) {
    T* __restrict to = dx.at(element);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const T given = load(dy[c]);
      to[c] += at[c] == tap ? given : T{0};
    }
    ++tap;
  });
}

// y = Σ x / count
template <typename X, typename T>
void find_mean(const Plane<const X> x, const Window& window, T count, int64_t n, T* __restrict y) {
  for (int64_t c = 0; c < n; ++c) y[c] = 0;
  window.for_each([&](int64_t element) __attribute__((always_inline)) {
    const X* __restrict from = x.at(element);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) y[c] += load(from[c]);
  });
  for (int64_t c = 0; c < n; ++c) y[c] /= count;
}

// dx += dy / count
template <typename X, typename T>
void add_share(const X* __restrict dy, const Window& window, T count, int64_t n, const Plane<T> dx) {
  T share[kBlock];
  for (int64_t c = 0; c < n; ++c) share[c] = load(dy[c]) / count;
  window.for_each([&](int64_t element) __attribute__((always_inline)) {
    T* __restrict to = dx.at(element);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) to[c] += share[c];
  });
}

// ---- All windows

// A block of channels of one image: its offsets in the input and output images, and its number of channels. Blocks of
// different shares may run at the same time.
struct Block {
  int64_t in, out, n, share;
};

// The images of a pool, cut into blocks of channels.
struct Images {
  Pool pool;
  int64_t batch, channels, block, shares;

  // With `copies`, the blocks are small enough for the float32 copy of a block of dx to stay in the cache.
  Images(const NodeSpec& spec, Shape x, Shape y, bool copies) : batch(x[0]), channels(x.back()) {
    for (Shape* shape : {&x, &y}) std::rotate(shape->begin() + 1, shape->end() - 1, shape->end());
    pool = make_pool(spec, x, y);
    constexpr int64_t kCopied = 1 << 17, kLine = 16;
    const int64_t fitting = kCopied / std::max<int64_t>(1, in_spatial_size(pool.geometry)) / kLine * kLine;
    block = copies ? std::clamp(fitting, kLine, kBlock) : kBlock;
    const int64_t work = out_spatial_size(pool.geometry) * taps(pool.geometry) * std::min(channels, block);
    const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, work));
    shares = std::clamp<int64_t>(batch * blocks() / grain, 1, spec.threads());
  }

  int64_t blocks() const { return (channels + block - 1) / block; }

  // Calls f(block) for each block, in parallel.
  template <typename F>
  void for_each_block(const F& f) const {
    const int64_t in = in_spatial_size(pool.geometry) * channels, out = out_spatial_size(pool.geometry) * channels;
    const int64_t all = batch * blocks();
    parallel_for(shares, 1, [&](int64_t share, int64_t end) {
      for (; share < end; ++share) {
        for (int64_t i = all * share / shares; i < all * (share + 1) / shares; ++i) {
          const int64_t first = i % blocks() * block, image = i / blocks();
          f(Block{image * in + first, image * out + first, std::min(block, channels - first), share});
        }
      }
    });
  }

  // Calls f(window, output position, elements an average counts) for each window of a block.
  template <typename F>
  void for_each_window(const F& f) const {
    cpu::for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t count) {
      f(Window{pool.geometry, d, h, w}, window * channels, std::max<int64_t>(count, 1));
    });
  }
};

// Calls make(window, count, first element of x in the block, channels, output) for each window.
template <typename X, typename Y, typename Make>
void pool_windows(const Images& images, const X* x, Y* y, const Make& make) {
  images.for_each_block([&](const Block& block) {
    images.for_each_window([&](const Window& window, int64_t to, int64_t count) {
      Computed<X> results[kBlock];
      make(Plane<const X>{x + block.in, images.channels}, window, static_cast<Computed<X>>(count), block.n, results);
      vectorized([&] { convert_row(results, block.n, y + block.out + to); });
    });
  });
}

// Calls add(window, count, block, dy of the window, dx) for each window; dx starts at zero.
template <typename T, typename Y, typename Add>
void add_windows(const Images& images, T* copies, Y* dx, const Add& add) {
  const int64_t spatial_size = in_spatial_size(images.pool.geometry);
  images.for_each_block([&](const Block& block) {
    constexpr bool kCopies = !std::is_same_v<T, Y>;
    Plane<T> sums = {nullptr, kCopies ? block.n : images.channels};
    if constexpr (kCopies) {
      sums.first = copies + block.share * spatial_size * images.block;
    } else {
      sums.first = dx + block.in;
    }
    for (int64_t p = 0; p < spatial_size; ++p) std::fill_n(sums.at(p), block.n, T{0});
    images.for_each_window([&](const Window& window, int64_t from, int64_t count) {
      if (!window.empty()) add(window, static_cast<T>(count), block, block.out + from, sums);
    });
    if (!kCopies) return;
    for (int64_t p = 0; p < spatial_size; ++p)
      vectorized([&] { convert_row(sums.at(p), block.n, dx + block.in + p * images.channels); });
  });
}

// ---- Rows

// Calls f(X{}, Y{}) for the element types of the images that are read and written.
template <typename F>
Prepared dispatch_images(const NodeSpec& spec, const F& f) {
  if (spec.in_type() != DType::kBFloat16)
    return dispatch_float(spec.in_type(), [&](auto zero) { return f(zero, zero); });
  return spec.out_type() == DType::kBFloat16 ? f(BFloat16{}, BFloat16{}) : f(BFloat16{}, float{});
}

Prepared prepare_max_pool(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) -> Prepared {
    using T = Computed<X>;
    return {[images = Images(spec, spec.in_shape(), spec.out_shape(), false)](const Launch& launch) {
      pool_windows(images, launch.in<X>(0), launch.out<Y>(),
                   [](const Plane<const X>& x, const Window& window, T, int64_t n, T* y) {
                     vectorized([&] { find_maximum(x, window, n, y); });
                   });
    }};
  });
}

Prepared prepare_average_pool(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) -> Prepared {
    using T = Computed<X>;
    return {[images = Images(spec, spec.in_shape(), spec.out_shape(), false)](const Launch& launch) {
      pool_windows(images, launch.in<X>(0), launch.out<Y>(),
                   [](const Plane<const X>& x, const Window& window, T count, int64_t n, T* y) {
                     vectorized([&] { find_mean(x, window, count, n, y); });
                   });
    }};
  });
}

// Bytes for the float32 copies of dx.
template <typename T, typename Y>
size_t copied_bytes(const Images& images) {
  if (std::is_same_v<T, Y>) return 0;
  return static_cast<size_t>(images.shares * in_spatial_size(images.pool.geometry) * images.block) * sizeof(T);
}

Prepared prepare_max_pool_grad(const NodeSpec& spec) {
  if (spec.in_type(0) != spec.in_type(1) || spec.out_shape() != spec.in_shape(1))
    fail(spec.node().label(), ": dx must be as large as x");
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) -> Prepared {
    using T = Computed<X>;
    const Images images(spec, spec.in_shape(1), spec.in_shape(0), !std::is_same_v<T, Y>);
    return {[images](const Launch& launch) {
              const X *dy = launch.in<X>(0), *x = launch.in<X>(1);
              add_windows(images, launch.scratch<T>(), launch.out<Y>(),
                          [&](const Window& window, T, const Block& block, int64_t from, const Plane<T>& dx) {
                            const Plane<const X> plane = {x + block.in, images.channels};
                            vectorized([&] { add_to_maximum(plane, dy + from, window, block.n, dx); });
                          });
            },
            copied_bytes<T, Y>(images)};
  });
}

Prepared prepare_average_pool_grad(const NodeSpec& spec) {
  return dispatch_images(spec, [&]<typename X, typename Y>(X, Y) -> Prepared {
    using T = Computed<X>;
    const Images images(spec, spec.out_shape(), spec.in_shape(0), !std::is_same_v<T, Y>);
    return {[images](const Launch& launch) {
              const X* dy = launch.in<X>(0);
              add_windows(images, launch.scratch<T>(), launch.out<Y>(),
                          [&](const Window& window, T count, const Block& block, int64_t from, const Plane<T>& dx) {
                            vectorized([&] { add_share(dy + from, window, count, block.n, dx); });
                          });
            },
            copied_bytes<T, Y>(images)};
  });
}

bool supports(const NodeSpec& spec, int images) {
  return is_float_or_double(spec.in_type()) && has_spatial_axes(spec.in_shape()) && spec.one_type(images);
}

// bfloat16 images; the result is bfloat16 or float32.
bool supports_narrow(const NodeSpec& spec, int images) {
  for (int i = 0; i < images; ++i) {
    if (spec.in_type(i) != DType::kBFloat16) return false;
  }
  return has_spatial_axes(spec.in_shape()) && (spec.out_type() == DType::kBFloat16 || spec.out_type() == DType::kFloat);
}

}  // namespace

std::vector<Kernel> channels_last_pooling_kernels() {
  const auto wide = [](int images) { return [=](const NodeSpec& spec) { return supports(spec, images); }; };
  const auto narrow = [](int images) { return [=](const NodeSpec& spec) { return supports_narrow(spec, images); }; };
  std::vector<Kernel> rows = {
      {"MaxPool", wide(1), prepare_max_pool, kDomain},
      {"MaxPoolGrad", wide(2), prepare_max_pool_grad, kDomain},
      {"AveragePool", wide(1), prepare_average_pool, kDomain},
      {"AveragePoolGrad", wide(1), prepare_average_pool_grad, kDomain},
      {"MaxPool", narrow(1), prepare_max_pool, kDomain},
      {"MaxPoolGrad", narrow(2), prepare_max_pool_grad, kDomain},
      {"AveragePool", narrow(1), prepare_average_pool, kDomain},
      {"AveragePoolGrad", narrow(1), prepare_average_pool_grad, kDomain},
  };
  for (Kernel& row : rows) row.images = ImageLayout::kChannelsLast;
  return rows;
}

}  // namespace onnx_train::cpu
