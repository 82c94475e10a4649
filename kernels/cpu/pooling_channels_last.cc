// MaxPool, AveragePool and their gradients on images that lie channels last (functions/channels_last.cc): each window
// is worked on for a block of channels at once, which are vectors. Elements meet in the order of the kernels that work
// plane by plane (pooling.cc), so the results are theirs, bit for bit.
//
// Images may be stored in bfloat16. What a window gives is made in float32 and rounded as it is written; gradients, to
// which several windows add, are made in a float32 copy of a block of channels and rounded from there.
#include <algorithm>
#include <limits>

#include "kernels/cpu/pooling.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stored.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kBlock = 64;  // channels that are worked on together

// A window of one image.
struct Window {
  const Grid& grid;
  const Span &d, &h, &w;

  bool empty() const { return d.count * h.count * w.count == 0; }
  // Calls f(number of the element) for each element.
  template <typename F>
  [[gnu::always_inline]] void for_each(const F& f) const {
    for_each_element(grid, d, h, w, f);
  }
};

// Where elements of one channel lie: those of neighbouring places are `channels` apart.
template <typename T>
struct Plane {
  T* __restrict first;
  int64_t channels;
  T* at(int64_t element) const { return first + element * channels; }
};

// y = the largest element, or the last NaN
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

// dx += dy at the window's first largest element, or its last NaN
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

// A block of the channels of one image: where it starts in the input image and in the output image, how many channels.
// Blocks of different shares may be worked on at the same time.
struct Block {
  int64_t in, out, n, share;
};

// Images of a pool, cut into blocks of channels.
struct Images {
  Pool pool;
  int64_t batch, channels, block, shares;

  // Gradients of narrow images are made in a copy that should stay in the cache: of fewer channels where images are
  // large.
  Images(const NodeSpec& spec, Shape x, Shape y, bool copies) : batch(x[0]), channels(x.back()) {
    for (Shape* shape : {&x, &y}) std::rotate(shape->begin() + 1, shape->end() - 1, shape->end());
    pool = make_pool(spec, x, y);
    constexpr int64_t kCopied = 1 << 17, kLine = 16;
    const int64_t fitting = kCopied / std::max<int64_t>(1, points_in(pool.grid)) / kLine * kLine;
    block = copies ? std::clamp(fitting, kLine, kBlock) : kBlock;
    const int64_t work = points_out(pool.grid) * taps(pool.grid) * std::min(channels, block);
    const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, work));
    shares = std::clamp<int64_t>(batch * blocks() / grain, 1, spec.threads());
  }

  int64_t blocks() const { return (channels + block - 1) / block; }

  // Calls f(block) for each block, on all threads.
  template <typename F>
  void for_each_block(const F& f) const {
    const int64_t in = points_in(pool.grid) * channels, out = points_out(pool.grid) * channels;
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

  // Calls f(window, place of its output, elements an average counts) for each window of a block.
  template <typename F>
  void for_each_window(const F& f) const {
    cpu::for_each_window(pool, [&](int64_t window, const Span& d, const Span& h, const Span& w, int64_t count) {
      f(Window{pool.grid, d, h, w}, window * channels, std::max<int64_t>(count, 1));
    });
  }
};

// Calls make(window, count, block's first element of x, channels, where the results go) for each window.
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

// Calls add(window, count, block, where the window's output lies, dx) for each window; dx is zeros at first.
template <typename T, typename Y, typename Add>
void add_windows(const Images& images, T* copies, Y* dx, const Add& add) {
  const int64_t points = points_in(images.pool.grid);
  images.for_each_block([&](const Block& block) {
    constexpr bool kCopies = !std::is_same_v<T, Y>;
    Plane<T> sums = {nullptr, kCopies ? block.n : images.channels};
    if constexpr (kCopies) {
      sums.first = copies + block.share * points * images.block;
    } else {
      sums.first = dx + block.in;
    }
    for (int64_t p = 0; p < points; ++p) std::fill_n(sums.at(p), block.n, T{0});
    images.for_each_window([&](const Window& window, int64_t from, int64_t count) {
      if (!window.empty()) add(window, static_cast<T>(count), block, block.out + from, sums);
    });
    if (!kCopies) return;
    for (int64_t p = 0; p < points; ++p)
      vectorized([&] { convert_row(sums.at(p), block.n, dx + block.in + p * images.channels); });
  });
}

// ---- Rows

// Calls f(X{}, Y{}) for the types in which images are read and written.
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

// Bytes for the copies of blocks of dx.
template <typename T, typename Y>
size_t copied_bytes(const Images& images) {
  if (std::is_same_v<T, Y>) return 0;
  return static_cast<size_t>(images.shares * points_in(images.pool.grid) * images.block) * sizeof(T);
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

bool supports(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && has_spatial_axes(spec.in_shape()) && spec.one_type(1);
}

// Images in bfloat16; the result in that or in float32.
bool supports_narrow(const NodeSpec& spec, int images) {
  for (int i = 0; i < images; ++i) {
    if (spec.in_type(i) != DType::kBFloat16) return false;
  }
  return has_spatial_axes(spec.in_shape()) && (spec.out_type() == DType::kBFloat16 || spec.out_type() == DType::kFloat);
}

}  // namespace

std::vector<Kernel> channels_last_pooling_kernels() {
  const auto narrow = [](int images) { return [=](const NodeSpec& spec) { return supports_narrow(spec, images); }; };
  return {
      {"ChannelsLastMaxPool", supports, prepare_max_pool, kDomain},
      {"ChannelsLastMaxPoolGrad", supports, prepare_max_pool_grad, kDomain},
      {"ChannelsLastAveragePool", supports, prepare_average_pool, kDomain},
      {"ChannelsLastAveragePoolGrad", supports, prepare_average_pool_grad, kDomain},
      {"Bfloat16ChannelsLastMaxPool", narrow(1), prepare_max_pool, kDomain},
      {"Bfloat16ChannelsLastMaxPoolGrad", narrow(2), prepare_max_pool_grad, kDomain},
      {"Bfloat16ChannelsLastAveragePool", narrow(1), prepare_average_pool, kDomain},
      {"Bfloat16ChannelsLastAveragePoolGrad", narrow(1), prepare_average_pool_grad, kDomain},
  };
}

}  // namespace onnx_train::cpu
