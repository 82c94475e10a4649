// RoiAlign, MaxRoiPool and their gradients (kernels/geometry/regions.h). The mean of each bin is y = A x Bᵀ: first A x
// for a block of columns, a loop over neighbouring pixels, then the columns of each bin.
#include <algorithm>

#include "kernels/cpu/sampling/sampling.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/cpu/support/simd.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/regions.h"
#include "kernels/geometry/sampling.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cpu {
namespace {

// The image of region r. The regions are input `input`; the numbers of their images the next one, or in it.
template <typename T>
int64_t image_of(const Launch& launch, const RegionPooling& pool, int input, int64_t r) {
  return pool.whole_pixels ? image_number(launch.in<T>(input)[5 * r]) : launch.in<int64_t>(input + 1)[r];
}

// Reports the first number of an image that does not exist.
template <typename T>
bool has_fault(const Launch& launch, const RegionPooling& pool, int input) {
  for (int64_t r = 0; r < pool.regions; ++r) {
    const int64_t image = image_of<T>(launch, pool, input, r);
    if (image >= 0 && image < pool.images) continue;
    pool.whole_pixels ? launch.report(input, 5 * r, image) : launch.report(input + 1, r, image);
    return true;
  }
  return false;
}

std::function<std::string(const Fault&)> explain_image(int64_t images) {
  return [images](const Fault& fault) {
    return concat("image ", fault.value, " is outside of the batch of ", images, " images");
  };
}

// The matrices of all regions, in the workspace: A [regions, bins, rows], B [regions, bins, columns], and the pixels
// [first, last) beyond which a row of either is zero.
template <typename T>
struct Matrices {
  RegionPooling pool;

  int64_t elements(int axis) const { return pool.regions * pool.bins[axis] * pool.sizes[axis]; }
  int64_t ranges() const { return 2 * pool.regions * (pool.bins[0] + pool.bins[1]); }
  size_t bytes() const {
    return static_cast<size_t>(ranges()) * sizeof(int64_t) + static_cast<size_t>(elements(0) + elements(1)) * sizeof(T);
  }
  int64_t* range(const Launch& launch, int axis, int64_t region, int64_t bin) const {
    return launch.scratch<int64_t>() + 2 * ((axis * pool.bins[0]) * pool.regions + region * pool.bins[axis] + bin);
  }
  T* row(const Launch& launch, int axis, int64_t region, int64_t bin) const {
    return reinterpret_cast<T*>(launch.scratch<int64_t>() + ranges()) + axis * elements(0) +
           (region * pool.bins[axis] + bin) * pool.sizes[axis];
  }
  void fill(const Launch& launch, const T* boxes) const {
    for (int axis = 0; axis < 2; ++axis) {
      std::fill_n(row(launch, axis, 0, 0), elements(axis), T{0});
      for (int64_t r = 0; r < pool.regions; ++r) {
        const RegionAxis<T> of(pool, boxes + 4 * r, axis);
        for (int64_t p = 0; p < pool.bins[axis]; ++p)
          of.fill_row(p, row(launch, axis, r, p), range(launch, axis, r, p));
      }
    }
  }
};

constexpr int64_t kColumns = 256;  // of a block

// The bins of one region, by axis, as the loops read them.
template <typename T>
struct RegionRows {
  const RegionPooling& pool;
  const T *a, *b;                    // the region's rows of both matrices
  const int64_t *a_range, *b_range;  // [bins, 2]
  int64_t first = 0, last = 0;       // columns that any bin reads

  RegionRows(const Matrices<T>& m, const Launch& launch, int64_t region)
      : pool(m.pool),
        a(m.row(launch, 0, region, 0)),
        b(m.row(launch, 1, region, 0)),
        a_range(m.range(launch, 0, region, 0)),
        b_range(m.range(launch, 1, region, 0)),
        first(pool.sizes[1]) {
    for (int64_t q = 0; q < pool.bins[1]; ++q) {
      first = std::min(first, b_range[2 * q]);
      last = std::max(last, b_range[2 * q + 1]);
    }
  }
};

// y = A x Bᵀ of one region and channel.
template <typename T>
void pool_region(const RegionRows<T>& r, const T* x, T* y) {
  const auto& [rows, columns] = r.pool.sizes;
  for (int64_t p = 0; p < r.pool.bins[0]; ++p, y += r.pool.bins[1]) {
    std::fill_n(y, r.pool.bins[1], T{0});
    for (int64_t begin = r.first; begin < r.last; begin += kColumns) {
      const int64_t count = std::min(kColumns, r.last - begin);
      T sums[kColumns] = {};
      for (int64_t h = r.a_range[2 * p]; h < r.a_range[2 * p + 1]; ++h) {
        const T weight = r.a[p * rows + h];
        if (weight == 0) continue;
        const T* line = x + h * columns + begin;
#pragma omp simd
        for (int64_t w = 0; w < count; ++w) sums[w] += weight * line[w];
      }
      for (int64_t q = 0; q < r.pool.bins[1]; ++q) {
        const int64_t from = std::max(begin, r.b_range[2 * q]), to = std::min(begin + count, r.b_range[2 * q + 1]);
        const T* weights = r.b + q * columns;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t w = from; w < to; ++w) sum += weights[w] * sums[w - begin];
        y[q] += sum;
      }
    }
  }
}

// dx += Aᵀ dy B of one region and channel.
template <typename T>
void spread_region(const RegionRows<T>& r, const T* dy, T* dx) {
  const auto& [rows, columns] = r.pool.sizes;
  for (int64_t p = 0; p < r.pool.bins[0]; ++p, dy += r.pool.bins[1]) {
    for (int64_t begin = r.first; begin < r.last; begin += kColumns) {
      const int64_t count = std::min(kColumns, r.last - begin);
      T sums[kColumns] = {};
      for (int64_t q = 0; q < r.pool.bins[1]; ++q) {
        const int64_t from = std::max(begin, r.b_range[2 * q]), to = std::min(begin + count, r.b_range[2 * q + 1]);
        const T* weights = r.b + q * columns;
#pragma omp simd
        for (int64_t w = from; w < to; ++w) sums[w - begin] += weights[w] * dy[q];
      }
      for (int64_t h = r.a_range[2 * p]; h < r.a_range[2 * p + 1]; ++h) {
        const T weight = r.a[p * rows + h];
        if (weight == 0) continue;
        T* line = dx + h * columns + begin;
#pragma omp simd
        for (int64_t w = 0; w < count; ++w) line[w] += weight * sums[w];
      }
    }
  }
}

int64_t grain_of(int64_t elements) { return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements)); }

template <typename T>
Prepared prepare_mean(const NodeSpec& spec) {
  const Matrices<T> m{find_region_pooling(spec, spec.in_shape(0), spec.out_shape())};
  Prepared prepared;
  prepared.workspace = m.bytes();
  prepared.explain = explain_image(m.pool.images);
  prepared.run = [m](const Launch& launch) {
    const RegionPooling& pool = m.pool;
    if (has_fault<T>(launch, pool, 1)) return;
    m.fill(launch, launch.in<T>(1));
    parallel_for(pool.regions * pool.channels, grain_of(16 * pool.all_bins()), [&](int64_t begin, int64_t end) {
      vectorized([&] {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = i / pool.channels, plane = launch.in<int64_t>(2)[r] * pool.channels + i % pool.channels;
          pool_region(RegionRows<T>(m, launch, r), launch.in<T>(0) + plane * pool.pixels(),
                      launch.out<T>() + i * pool.all_bins());
        }
      });
    });
  };
  return prepared;
}

template <typename T>
Prepared prepare_mean_grad(const NodeSpec& spec) {
  const Matrices<T> m{find_region_pooling(spec, spec.out_shape(), spec.in_shape(0))};
  Prepared prepared;
  prepared.workspace = m.bytes();
  prepared.explain = explain_image(m.pool.images);
  prepared.run = [m](const Launch& launch) {
    const RegionPooling& pool = m.pool;
    if (has_fault<T>(launch, pool, 1)) return;
    m.fill(launch, launch.in<T>(1));
    const int64_t of_channel = pool.images * pool.pixels() + 16 * pool.regions * pool.all_bins();
    parallel_for(pool.channels, grain_of(of_channel), [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < pool.images; ++n) {
        std::fill_n(launch.out<T>() + (n * pool.channels + begin) * pool.pixels(), (end - begin) * pool.pixels(), T{0});
      }
      vectorized([&] {
        for (int64_t r = 0; r < pool.regions; ++r) {
          const RegionRows<T> rows(m, launch, r);
          const int64_t plane = launch.in<int64_t>(2)[r] * pool.channels;
          for (int64_t c = begin; c < end; ++c) {
            spread_region(rows, launch.in<T>(0) + (r * pool.channels + c) * pool.all_bins(),
                          launch.out<T>() + (plane + c) * pool.pixels());
          }
        }
      });
    });
  };
  return prepared;
}

// Calls f(bin of all, largest tap) for the bins of a channel of a region.
template <typename T, typename F>
void for_each_bin(const RegionPooling& pool, const T* box, const T* image, F&& f) {
  for (int64_t p = 0; p < pool.bins[0]; ++p) {
    for (int64_t q = 0; q < pool.bins[1]; ++q) {
      f(p * pool.bins[1] + q, find_largest(pool, box, p, q, image));
    }
  }
}

template <typename T>
Prepared prepare_largest(const NodeSpec& spec) {
  const RegionPooling pool = find_region_pooling(spec, spec.in_shape(0), spec.out_shape());
  Prepared prepared;
  prepared.explain = explain_image(pool.images);
  prepared.run = [pool](const Launch& launch) {
    if (has_fault<T>(launch, pool, 1)) return;
    parallel_for(pool.regions * pool.channels, grain_of(16 * pool.all_bins()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / pool.channels,
                      plane = image_of<T>(launch, pool, 1, r) * pool.channels + i % pool.channels;
        T* y = launch.out<T>() + i * pool.all_bins();
        for_each_bin(pool, pool.box(launch.in<T>(1), r), launch.in<T>(0) + plane * pool.pixels(),
                     [&](int64_t bin, const LargestTap<T>& tap) { y[bin] = tap.value; });
      }
    });
  };
  return prepared;
}

template <typename T>
Prepared prepare_largest_grad(const NodeSpec& spec) {
  const RegionPooling pool = find_region_pooling(spec, spec.out_shape(), spec.in_shape(0));
  Prepared prepared;
  prepared.explain = explain_image(pool.images);
  prepared.run = [pool](const Launch& launch) {
    if (has_fault<T>(launch, pool, 2)) return;
    std::fill_n(launch.out<T>(), pool.images * pool.channels * pool.pixels(), T{0});
    parallel_for(pool.channels, grain_of(16 * pool.regions * pool.all_bins()), [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < pool.regions; ++r) {
        const int64_t plane = image_of<T>(launch, pool, 2, r) * pool.channels;
        for (int64_t c = begin; c < end; ++c) {
          const T* dy = launch.in<T>(0) + (r * pool.channels + c) * pool.all_bins();
          T* dx = launch.out<T>() + (plane + c) * pool.pixels();
          for_each_bin(pool, pool.box(launch.in<T>(2), r), launch.in<T>(1) + (plane + c) * pool.pixels(),
                       [&](int64_t bin, const LargestTap<T>& tap) {
                         if (tap.pixel >= 0) dx[tap.pixel] += tap.weight * dy[bin];
                       });
        }
      }
    });
  };
  return prepared;
}

bool takes_largest(const NodeSpec& spec) { return std::string(spec.node().attr("mode", "avg")) == "max"; }

}  // namespace

std::vector<Kernel> region_kernels() {
  const auto largest = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_largest<T>(spec); });
  };
  const auto align = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) {
      return takes_largest(spec) ? prepare_largest<T>(spec) : prepare_mean<T>(spec);
    });
  };
  const auto mean_grad = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_mean_grad<T>(spec); });
  };
  const auto largest_grad = [](const NodeSpec& spec) {
    return dispatch_float(spec.out_type(), [&]<typename T>(T) { return prepare_largest_grad<T>(spec); });
  };
  return {
      {"RoiAlign", supports_sampling, align, "", "", InputCheck::kChecks},
      {"RoiAlignGrad", supports_sampling, mean_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"RoiAlignMaxGrad", supports_sampling, largest_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"MaxRoiPool", supports_sampling, largest, "", "", InputCheck::kChecks},
      {"MaxRoiPoolGrad", supports_sampling, largest_grad, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cpu
