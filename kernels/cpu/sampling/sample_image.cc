// Interpolated images (kernels/geometry/sampling.h): GridSample, SampleImage and its gradients. The taps of a block of
// points are found once for all channels; then each tap is a loop over the points.
#include <algorithm>
#include <vector>

#include "kernels/cpu/sampling/sampling.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/sampling.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kMostTaps = 64;                 // cubic, three axes
constexpr int64_t kBlockTaps = 2048;              // of a block of points
constexpr int64_t kTapGrain = kElementGrain / 4;  // taps that are worth a thread
constexpr int64_t kFewestPoints = kBlockTaps / kMostTaps;

// The taps of up to `capacity` points: pixels, -1 for none, and weights as [taps, capacity].
template <typename T>
struct BlockTaps {
  int64_t taps = 0, capacity = 0;
  int32_t pixels[kBlockTaps];
  T weights[kBlockTaps];

  explicit BlockTaps(const Sampling& s) {
    taps = 1;
    for (int k = 0; k < s.axes; ++k) taps *= taps_of(s.mode);
    capacity = std::max(kFewestPoints, kBlockTaps / taps);
  }
  void find(const Sampling& s, const T* points, int64_t count) {
    dispatch_taps(s.mode, [&](auto along) {
      for (int64_t p = 0; p < count; ++p) {
        PointTaps<T, along()>(s, points + p * s.axes)
            .for_each(s, [&](int tap, int64_t pixel, const T(&weight)[3], const T(&)[3]) {
              pixels[tap * capacity + p] = static_cast<int32_t>(pixel);
              weights[tap * capacity + p] = weight[0] * weight[1] * weight[2];
            });
      }
    });
  }
};

// Calls f(first point, count) for blocks of the points in [begin, end).
template <typename F>
void for_each_block(int64_t begin, int64_t end, int64_t capacity, F&& f) {
  for (int64_t first = begin; first < end; first += capacity) f(first, std::min(capacity, end - first));
}

// y[p] += weight[p] x[pixel[p]]
template <typename T>
void add_tap(int64_t count, const int32_t* __restrict pixels, const T* __restrict weights, const T* __restrict x,
             T* __restrict y) {
#pragma omp simd
  for (int64_t p = 0; p < count; ++p) y[p] += pixels[p] < 0 ? T{0} : weights[p] * x[pixels[p]];
}

// sums[p] += dy[p] x[pixel[p]]
template <typename T>
void add_product(int64_t count, const int32_t* __restrict pixels, const T* __restrict dy, const T* __restrict x,
                 T* __restrict sums) {
#pragma omp simd
  for (int64_t p = 0; p < count; ++p) sums[p] += pixels[p] < 0 ? T{0} : dy[p] * x[pixels[p]];
}

// A number of equal parts of `count` that keeps all threads busy, given that there are `images` times as many.
int64_t parts_of(int64_t count, int64_t images) {
  constexpr int64_t kPartsPerThread = 4;
  const int64_t wanted = (kPartsPerThread * omp_get_max_threads() + images - 1) / std::max<int64_t>(images, 1);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(count, 1));
}

int64_t grain_of(const Sampling& s, int64_t parts) {
  const int64_t taps = s.points * s.channels * taps_of(s.mode) * s.axes / std::max<int64_t>(parts, 1);
  return std::max<int64_t>(1, kTapGrain / std::max<int64_t>(taps, 1));
}

// Runs f(image, first, last) in parallel over parts of `count` items of each image.
template <typename F>
void for_each_part(const Sampling& s, int64_t count, F&& f) {
  const int64_t parts = parts_of(count, s.images);
  parallel_for(s.images * parts, grain_of(s, parts), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / parts, count * (i % parts) / parts, count * (i % parts + 1) / parts);
  });
}

// y[n, c, p] = Σ weight x[n, c, pixel]
template <typename T>
Prepared prepare_sample(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.in_shape(0), spec.in_shape(1));
  return {[s](const Launch& launch) {
    for_each_part(s, s.points, [&](int64_t image, int64_t begin, int64_t end) {
      BlockTaps<T> block(s);
      for_each_block(begin, end, block.capacity, [&](int64_t first, int64_t count) {
        block.find(s, launch.in<T>(1) + (image * s.points + first) * s.axes, count);
        vectorized([&] {
          for (int64_t c = image * s.channels; c < (image + 1) * s.channels; ++c) {
            T* y = launch.out<T>() + c * s.points + first;
            std::fill_n(y, count, T{0});
            for (int64_t t = 0; t < block.taps; ++t) {
              add_tap(count, block.pixels + t * block.capacity, block.weights + t * block.capacity,
                      launch.in<T>(0) + c * s.pixels(), y);
            }
          }
        });
      });
    });
  }};
}

// dx[n, c, q] = Σ weight dy[n, c, p] over the points p and their taps that read q
template <typename T>
Prepared prepare_grad_input(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.out_shape(), spec.in_shape(1));
  return {[s](const Launch& launch) {
    for_each_part(s, s.channels, [&](int64_t image, int64_t from, int64_t to) {
      BlockTaps<T> block(s);
      const int64_t plane = image * s.channels;
      std::fill_n(launch.out<T>() + (plane + from) * s.pixels(), (to - from) * s.pixels(), T{0});
      for_each_block(0, s.points, block.capacity, [&](int64_t first, int64_t count) {
        block.find(s, launch.in<T>(1) + (image * s.points + first) * s.axes, count);
        for (int64_t c = plane + from; c < plane + to; ++c) {
          const T* dy = launch.in<T>(0) + c * s.points + first;
          T* dx = launch.out<T>() + c * s.pixels();
          for (int64_t t = 0; t < block.taps; ++t) {
            const int32_t* pixels = block.pixels + t * block.capacity;
            const T* weights = block.weights + t * block.capacity;
            for (int64_t p = 0; p < count; ++p) {
              if (pixels[p] >= 0) dx[pixels[p]] += weights[p] * dy[p];
            }
          }
        }
      });
    });
  }};
}

// dpoints[n, p, k] = Σ over taps of (derivative of the weight) Σ over channels of dy[n, c, p] x[n, c, pixel]
template <typename T>
Prepared prepare_grad_points(const NodeSpec& spec) {
  const Sampling s = find_sampling(spec, spec.in_shape(1), spec.in_shape(2));
  return {[s](const Launch& launch) {
    for_each_part(s, s.points, [&](int64_t image, int64_t begin, int64_t end) {
      BlockTaps<T> block(s);
      T sums[kBlockTaps];  // of each tap, over channels
      for_each_block(begin, end, block.capacity, [&](int64_t first, int64_t count) {
        const int64_t place = (image * s.points + first) * s.axes;
        block.find(s, launch.in<T>(2) + place, count);
        std::fill_n(sums, block.taps * block.capacity, T{0});
        vectorized([&] {
          for (int64_t c = image * s.channels; c < (image + 1) * s.channels; ++c) {
            for (int64_t t = 0; t < block.taps; ++t) {
              add_product(count, block.pixels + t * block.capacity, launch.in<T>(0) + c * s.points + first,
                          launch.in<T>(1) + c * s.pixels(), sums + t * block.capacity);
            }
          }
        });
        dispatch_taps(s.mode, [&](auto along) {
          for (int64_t p = 0; p < count; ++p) {
            T d[3] = {};
            PointTaps<T, along()>(s, launch.in<T>(2) + place + p * s.axes)
                .for_each(s, [&](int tap, int64_t, const T(&weight)[3], const T(&slope)[3]) {
                  for (int k = 0; k < 3; ++k) d[k] += slope_along(k, weight, slope) * sums[tap * block.capacity + p];
                });
            for (int k = 0; k < s.axes; ++k) launch.out<T>()[place + p * s.axes + k] = d[2 - k];
          }
        });
      });
    });
  }};
}

}  // namespace

std::vector<Kernel> image_sampling_kernels() {
  const auto sample = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_sample<T>(spec); });
  };
  const auto grad_input = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_grad_input<T>(spec); });
  };
  const auto grad_points = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_grad_points<T>(spec); });
  };
  return {
      {"GridSample", supports_sampling, sample},
      {"SampleImage", supports_sampling, sample, kDomain},
      {"SampleImageGradInput", supports_sampling, grad_input, kDomain},
      {"SampleImageGradPoints", supports_sampling, grad_points, kDomain},
  };
}

}  // namespace onnx_train::cpu
