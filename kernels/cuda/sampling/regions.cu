// RoiAlign, MaxRoiPool and their gradients (kernels/geometry/regions.h). In the gradient of means each pixel adds the
// regions that it is in, in their order; in that of maxima the largest taps are sorted by their pixels.
#include "kernels/cuda/movement/sorted_rows.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/support/indices.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/regions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

// A bin of a channel of a region: element i of y.
struct BinThread {
  int64_t region, channel, p, q;

  __device__ BinThread(const RegionPooling& pool, int64_t i) {
    q = i % pool.bins[1];
    p = i / pool.bins[1] % pool.bins[0];
    const int64_t plane = i / pool.all_bins();
    region = plane / pool.channels;
    channel = plane - region * pool.channels;
  }
};

// One thread per element of y. `images` are the numbers of the regions' images.
template <typename T>
__global__ void pool_means(int64_t n, RegionPooling pool, const T* __restrict__ x, const T* __restrict__ boxes,
                           const int64_t* __restrict__ images, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const BinThread at(pool, i);
  const RegionAxis<T> rows(pool, boxes + 4 * at.region, 0), columns(pool, boxes + 4 * at.region, 1);
  const T* image = x + (images[at.region] * pool.channels + at.channel) * pool.pixels();
  int64_t row_samples[2], column_samples[2];
  rows.find_samples(at.p, &row_samples[0], &row_samples[1]);
  columns.find_samples(at.q, &column_samples[0], &column_samples[1]);
  T sum = 0;
  for (int64_t a = row_samples[0]; a < row_samples[1]; ++a) {
    const SampleTaps<T> row = rows.taps(at.p, a);
    if (!row.is_inside) continue;
    for (int64_t b = column_samples[0]; b < column_samples[1]; ++b) {
      const SampleTaps<T> column = columns.taps(at.q, b);
      if (!column.is_inside) continue;
      for (int k = 0; k < 4; ++k) {
        sum += row.weight[k / 2] * column.weight[k % 2] * image[row.at[k / 2] * columns.size + column.at[k % 2]];
      }
    }
  }
  const int64_t count = rows.samples * columns.samples;
  y[i] = count > 0 ? sum / static_cast<T>(count) : T{0};
}

template <typename T>
__global__ void pool_maxima(int64_t n, RegionPooling pool, const T* __restrict__ x, const T* __restrict__ boxes,
                            const int64_t* __restrict__ images, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const BinThread at(pool, i);
  const T* image = x + (images[at.region] * pool.channels + at.channel) * pool.pixels();
  y[i] = find_largest(pool, pool.box(boxes, at.region), at.p, at.q, image).value;
}

// Stores for each element of y the pixel of dx that its largest tap reads, and what it adds there.
template <typename T>
__global__ void find_maxima(int64_t n, RegionPooling pool, const T* __restrict__ dy, const T* __restrict__ x,
                            const T* __restrict__ boxes, const int64_t* __restrict__ images, int64_t* keys, T* shares) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const BinThread at(pool, i);
  const int64_t plane = (images[at.region] * pool.channels + at.channel) * pool.pixels();
  const LargestTap<T> tap = find_largest(pool, pool.box(boxes, at.region), at.p, at.q, x + plane);
  keys[i] = plane + (tap.pixel < 0 ? 0 : tap.pixel);
  shares[i] = tap.pixel < 0 ? T{0} : tap.weight * dy[i];
}

// Fills the rows of the matrix of one axis, all regions and bins, and their ranges. One thread per row.
template <typename T>
__global__ void fill_rows(int64_t n, RegionPooling pool, int axis, const T* __restrict__ boxes, T* matrix,
                          int64_t* ranges) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t region = i / pool.bins[axis], size = pool.sizes[axis];
  for (int64_t k = 0; k < size; ++k) matrix[i * size + k] = 0;
  RegionAxis<T>(pool, boxes + 4 * region, axis)
      .fill_row(i - region * pool.bins[axis], matrix + i * size, ranges + 2 * i);
}

// The matrices of all regions along one axis.
template <typename T>
struct AxisMatrices {
  const T* rows;
  const int64_t* ranges;
};

constexpr int64_t kChannels = 8;  // of a thread

// dx = Σ over regions of Aᵀ dy B. One thread per pixel and kChannels channels.
template <typename T>
__global__ void spread_means(int64_t n, RegionPooling pool, AxisMatrices<T> a, AxisMatrices<T> b,
                             const T* __restrict__ dy, const int64_t* __restrict__ images, T* dx) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t chunks = (pool.channels + kChannels - 1) / kChannels, pixel = i % pool.pixels();
  const int64_t image = i / pool.pixels() / chunks, first = (i / pool.pixels() - image * chunks) * kChannels;
  const int64_t h = pixel / pool.sizes[1], w = pixel - h * pool.sizes[1];
  const int64_t count = first + kChannels < pool.channels ? kChannels : pool.channels - first;
  T sums[kChannels] = {};
  for (int64_t r = 0; r < pool.regions; ++r) {
    if (images[r] != image) continue;
    for (int64_t p = r * pool.bins[0]; p < (r + 1) * pool.bins[0]; ++p) {
      if (h < a.ranges[2 * p] || h >= a.ranges[2 * p + 1]) continue;
      const T row = a.rows[p * pool.sizes[0] + h];
      if (row == 0) continue;
      for (int64_t q = r * pool.bins[1]; q < (r + 1) * pool.bins[1]; ++q) {
        if (w < b.ranges[2 * q] || w >= b.ranges[2 * q + 1]) continue;
        const T weight = row * b.rows[q * pool.sizes[1] + w];
        const T* from = dy + ((r * pool.channels + first) * pool.bins[0] + p - r * pool.bins[0]) * pool.bins[1] + q -
                        r * pool.bins[1];
        for (int64_t c = 0; c < count; ++c) sums[c] += weight * from[c * pool.all_bins()];
      }
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    dx[(image * pool.channels + first + c) * pool.pixels() + pixel] = sums[c];
  }
}

std::function<std::string(const Fault&)> explain_image(int64_t images) {
  return [images](const Fault& fault) {
    return concat("image ", fault.value, " is outside of the batch of ", images, " images");
  };
}

// The numbers of the regions' images, at the beginning of the workspace; those that do not exist are 0. The regions are
// input `input`; the numbers of their images the next one, or in it.
template <typename T>
const int64_t* read_images(const Launch& launch, const RegionPooling& pool, int input) {
  auto* const images = launch.scratch<int64_t>();
  int64_t* const scratch = images + pool.regions;
  if (pool.whole_pixels) {
    read_stored_numbers<T>(launch, {input, pool.regions, 5}, pool.images, images, scratch);
  } else if (pool.regions > 0) {
    read_numbers(launch, {input + 1, DType::kInt64, pool.regions}, 0, pool.images, images, scratch);
  }
  return images;
}

template <typename T>
Prepared align(const NodeSpec& spec) {
  const RegionPooling pool = find_region_pooling(spec, spec.in_shape(0), spec.out_shape());
  // Without images every number of one is reported, and there is nothing to read.
  const int64_t n = pool.images > 0 ? spec.out_size() : 0;
  const bool largest = pool.whole_pixels || std::string(spec.node().attr("mode", "avg")) == "max";
  Prepared prepared;
  prepared.workspace = index_workspace(pool.regions);
  prepared.explain = explain_image(pool.images);
  prepared.run = [=](const Launch& launch) {
    const int64_t* images = read_images<T>(launch, pool, 1);
    enqueue_each(launch, largest ? "pool_maxima" : "pool_means", largest ? pool_maxima<T> : pool_means<T>, n, pool,
                 launch.in<T>(0), launch.in<T>(1), images, launch.out<T>());
  };
  return prepared;
}

template <typename T>
Prepared align_grad(const NodeSpec& spec) {
  const RegionPooling pool = find_region_pooling(spec, spec.out_shape(), spec.in_shape(0));
  const size_t numbers = index_workspace(pool.regions);
  const int64_t rows = pool.regions * pool.bins[0], columns = pool.regions * pool.bins[1];
  const size_t ranges = align_up(static_cast<size_t>(2 * (rows + columns)) * sizeof(int64_t));
  Prepared prepared;
  prepared.workspace =
      numbers + ranges + static_cast<size_t>(rows * pool.sizes[0] + columns * pool.sizes[1]) * sizeof(T);
  prepared.explain = explain_image(pool.images);
  prepared.run = [=](const Launch& launch) {
    const int64_t* images = read_images<T>(launch, pool, 1);
    auto* const row_ranges = reinterpret_cast<int64_t*>(launch.scratch<char>() + numbers);
    int64_t* const column_ranges = row_ranges + 2 * rows;
    T* const a = reinterpret_cast<T*>(launch.scratch<char>() + numbers + ranges);
    T* const b = a + rows * pool.sizes[0];
    enqueue_each(launch, "fill_rows", fill_rows<T>, rows, pool, 0, launch.in<T>(1), a, row_ranges);
    enqueue_each(launch, "fill_rows", fill_rows<T>, columns, pool, 1, launch.in<T>(1), b, column_ranges);
    const int64_t n = pool.images * ((pool.channels + kChannels - 1) / kChannels) * pool.pixels();
    enqueue_each(launch, "spread_means", spread_means<T>, n, pool, AxisMatrices<T>{a, row_ranges},
                 AxisMatrices<T>{b, column_ranges}, launch.in<T>(0), images, launch.out<T>());
  };
  return prepared;
}

template <typename T>
Prepared align_max_grad(const NodeSpec& spec) {
  const RegionPooling pool = find_region_pooling(spec, spec.out_shape(), spec.in_shape(0));
  const size_t bytes = static_cast<size_t>(spec.out_size()) * sizeof(T), numbers = index_workspace(pool.regions);
  const int64_t count = spec.out_size() > 0 ? spec.in_size(0) : 0;
  const SortedRows sorted({1, count, spec.out_size(), 1}, spec.out_type(), Reduction::kAdd, true);
  const size_t keys = align_up(static_cast<size_t>(count) * sizeof(int64_t));
  const size_t shares = align_up(static_cast<size_t>(count) * sizeof(T));
  Prepared prepared;
  prepared.workspace = numbers + keys + shares + sorted.workspace();
  prepared.explain = explain_image(pool.images);
  prepared.run = [=](const Launch& launch) {
    const int64_t* images = read_images<T>(launch, pool, 2);
    set_bytes(launch, launch.outputs[0], 0, bytes);
    if (count == 0) return;
    auto* const key = reinterpret_cast<int64_t*>(launch.scratch<char>() + numbers);
    auto* const share = reinterpret_cast<T*>(launch.scratch<char>() + numbers + keys);
    enqueue_each(launch, "find_maxima", find_maxima<T>, count, pool, launch.in<T>(0), launch.in<T>(1), launch.in<T>(2),
                 images, key, share);
    sorted.run(launch, key, launch.scratch<char>() + numbers + keys + shares, share, launch.outputs[0], nullptr);
  };
  return prepared;
}

}  // namespace

Prepared prepare_roi_align(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return align<T>(spec); });
}

Prepared prepare_roi_align_grad(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return align_grad<T>(spec); });
}

Prepared prepare_roi_align_max_grad(const NodeSpec& spec) {
  return dispatch_float(spec.out_type(), [&]<typename T>(T) { return align_max_grad<T>(spec); });
}

}  // namespace onnx_train::cuda
