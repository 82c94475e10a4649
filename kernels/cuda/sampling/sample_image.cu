// GridSample, SampleImage and its gradients. The gradient of the image sorts the taps of all points by the pixel that
// they read; then a pixel adds its taps in the order of the points, and no result depends on the order of threads.
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/sort.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/sampling.h"

namespace onnx_train::cuda {
namespace {

constexpr int64_t kChannels = 8;  // of a thread, which finds its taps once

// An item (a point or a pixel) of an image, and the channels that a thread works on.
struct ItemThread {
  int64_t image, item, first, last;

  __device__ ItemThread(const Sampling& s, int64_t items, int64_t i) {
    const int64_t chunks = (s.channels + kChannels - 1) / kChannels, chunk = i / items;
    item = i - chunk * items;
    image = chunk / chunks;
    first = (chunk - image * chunks) * kChannels;
    last = first + kChannels < s.channels ? first + kChannels : s.channels;
  }
  static int64_t count(const Sampling& s, int64_t items) {
    return s.images * ((s.channels + kChannels - 1) / kChannels) * items;
  }
};

// y[n, c, p] = Σ weight x[n, c, pixel]. One thread per point and kChannels channels.
template <typename T, int kTaps>
__global__ void sample_image(int64_t n, Sampling s, const T* __restrict__ x, const T* __restrict__ points, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const ItemThread at(s, s.points, i);
  const PointTaps<T, kTaps> taps(s, points + (at.image * s.points + at.item) * s.axes);
  for (int64_t c = at.image * s.channels + at.first; c < at.image * s.channels + at.last; ++c) {
    T sum = 0;
    taps.for_each(s, [&](int, int64_t pixel, const T(&weight)[3], const T(&)[3]) {
      if (pixel >= 0) sum += weight[0] * weight[1] * weight[2] * x[c * s.pixels() + pixel];
    });
    y[c * s.points + at.item] = sum;
  }
}

// dpoints[n, p, k] = Σ over channels and taps of (derivative of the weight) dy[n, c, p] x[n, c, pixel]. One thread per
// point.
template <typename T, int kTaps>
__global__ void grad_points(int64_t n, Sampling s, const T* __restrict__ dy, const T* __restrict__ x,
                            const T* __restrict__ points, T* dpoints) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t image = i / s.points, p = i - image * s.points;
  const PointTaps<T, kTaps> taps(s, points + i * s.axes);
  T d[3] = {};
  for (int64_t c = image * s.channels; c < (image + 1) * s.channels; ++c) {
    const T g = dy[c * s.points + p];
    taps.for_each(s, [&](int, int64_t pixel, const T(&weight)[3], const T(&slope)[3]) {
      if (pixel < 0) return;
      const T product = g * x[c * s.pixels() + pixel];
      for (int k = 0; k < 3; ++k) d[k] += slope_along(k, weight, slope) * product;
    });
  }
  for (int k = 0; k < s.axes; ++k) dpoints[i * s.axes + k] = d[2 - k];
}

// The taps of a point in the order of its weights: keys are pixels of all images, and their number beyond an image.
template <typename T, int kTaps>
__global__ void find_taps(int64_t n, Sampling s, int64_t taps_of_point, const T* __restrict__ points, uint64_t* keys,
                          T* weights) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t image = i / s.points;
  const PointTaps<T, kTaps> taps(s, points + i * s.axes);
  taps.for_each(s, [&](int tap, int64_t pixel, const T(&weight)[3], const T(&)[3]) {
    const int64_t key = pixel < 0 ? s.images * s.pixels() : image * s.pixels() + pixel;
    keys[i * taps_of_point + tap] = static_cast<uint64_t>(key);
    weights[i * taps_of_point + tap] = weight[0] * weight[1] * weight[2];
  });
}

// Returns the first of `count` sorted keys that is not below `key`.
__device__ int64_t find_first(const uint64_t* keys, int64_t count, uint64_t key) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// dx[n, c, q] = Σ weight dy[n, c, p] over the sorted taps that read q. One thread per pixel and kChannels channels.
template <typename T>
__global__ void add_taps(int64_t n, Sampling s, int64_t taps_of_point, const uint64_t* __restrict__ keys,
                         const int64_t* __restrict__ places, const T* __restrict__ weights, const T* __restrict__ dy,
                         T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const ItemThread at(s, s.pixels(), i);
  const int64_t count = s.images * s.points * taps_of_point, first = at.image * s.channels + at.first;
  const auto key = static_cast<uint64_t>(at.image * s.pixels() + at.item);
  T sums[kChannels] = {};
  for (int64_t k = find_first(keys, count, key); k < count && keys[k] == key; ++k) {
    const int64_t p = places[k] / taps_of_point - at.image * s.points;
    const T weight = weights[places[k]];
    for (int64_t c = 0; c < at.last - at.first; ++c) sums[c] += weight * dy[(first + c) * s.points + p];
  }
  for (int64_t c = 0; c < at.last - at.first; ++c) dx[(first + c) * s.pixels() + at.item] = sums[c];
}

template <typename T>
Prepared sample(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.in_shape(0), spec.in_shape(1));
  return {[s](const Launch& launch) {
    dispatch_taps(s.mode, [&](auto taps) {
      enqueue_each(launch, "sample_image", sample_image<T, taps()>, ItemThread::count(s, s.points), s, launch.in<T>(0),
                   launch.in<T>(1), launch.out<T>());
    });
  }};
}

template <typename T>
Prepared sample_grad_points(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.in_shape(1), spec.in_shape(2));
  return {[s](const Launch& launch) {
    dispatch_taps(s.mode, [&](auto taps) {
      enqueue_each(launch, "grad_points", grad_points<T, taps()>, s.images * s.points, s, launch.in<T>(0),
                   launch.in<T>(1), launch.in<T>(2), launch.out<T>());
    });
  }};
}

template <typename T>
Prepared sample_grad_input(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.out_shape(), spec.in_shape(1));
  int64_t taps_of_point = 1;
  for (int k = 0; k < s.axes; ++k) taps_of_point *= taps_of(s.mode);
  const int64_t points = s.images * s.points, count = points * taps_of_point;
  const size_t bytes = static_cast<size_t>(spec.out_size()) * sizeof(T);
  if (count == 0) return {[bytes](const Launch& launch) { set_bytes(launch, launch.outputs[0], 0, bytes); }};
  const Sort sort(count, bits_below(s.images * s.pixels() + 1));
  const size_t key_bytes = align_up(static_cast<size_t>(count) * sizeof(uint64_t));
  const size_t weight_bytes = align_up(static_cast<size_t>(count) * sizeof(T));
  return {[=](const Launch& launch) {
            auto* const keys = launch.scratch<uint64_t>();
            auto* const weights = reinterpret_cast<T*>(launch.scratch<char>() + key_bytes);
            dispatch_taps(s.mode, [&](auto taps) {
              enqueue_each(launch, "find_taps", find_taps<T, taps()>, points, s, taps_of_point, launch.in<T>(1), keys,
                           weights);
            });
            const Sort::Result sorted = sort.run(launch, keys, launch.scratch<char>() + key_bytes + weight_bytes);
            enqueue_each(launch, "add_taps", add_taps<T>, ItemThread::count(s, s.pixels()), s, taps_of_point,
                         sorted.keys, sorted.places, weights, launch.in<T>(0), launch.out<T>());
          },
          key_bytes + weight_bytes + sort.workspace()};
}

}  // namespace

Prepared prepare_sample_image(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return sample<T>(spec); });
}

Prepared prepare_sample_image_grad_input(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return sample_grad_input<T>(spec); });
}

Prepared prepare_sample_image_grad_points(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return sample_grad_points<T>(spec); });
}

}  // namespace onnx_train::cuda
