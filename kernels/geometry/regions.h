// Regions of images that are pooled: RoiAlign and MaxRoiPool, for the kernels of every device. Plain values and pure
// functions; any thread.
//
// RoiAlign (He et al., "Mask R-CNN", 2017) cuts a region into bins and samples each at a grid of points, with linear
// interpolation. The mean of a bin is a product along each axis, y = A x Bᵀ with matrices of [bins, pixels]; these are
// formulas of ONNX's reference implementation, in the type of the elements.
//
// MaxRoiPool (Girshick, "Fast R-CNN", 2015) rounds a region to whole pixels and takes the largest one of each bin. Bins
// overlap where they do not divide the region. The number of the image is the first of a region's five numbers.
#pragma once

#include <cmath>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

struct RegionPooling {
  int64_t regions = 0, images = 0, channels = 0;
  int64_t sizes[2] = {}, bins[2] = {};  // height, width
  double scale = 1;
  int64_t sampling = 0;  // samples of a bin along an axis; 0: as many as it has pixels
  bool half_pixel = true;
  bool whole_pixels = false;  // MaxRoiPool: regions are image, x1, y1, x2, y2, else x1, y1, x2, y2

  ONNX_TRAIN_HD int64_t pixels() const { return sizes[0] * sizes[1]; }
  ONNX_TRAIN_HD int64_t all_bins() const { return bins[0] * bins[1]; }
  template <typename T>
  ONNX_TRAIN_HD const T* box(const T* all, int64_t r) const {
    return whole_pixels ? all + 5 * r + 1 : all + 4 * r;
  }
};

// The number of an image that is stored as a float; -1 where it is none.
template <typename T>
ONNX_TRAIN_HD inline int64_t image_number(T stored) {
  constexpr T kMost = static_cast<T>(int64_t{1} << 53);
  return stored > -kMost && stored < kMost ? static_cast<int64_t>(stored) : -1;
}

// RoiAlign or MaxRoiPool with images of shape x and results of shape y.
RegionPooling find_region_pooling(const NodeSpec& spec, const Shape& x, const Shape& y);

// The pixels between which a sample is, and the weight of each.
template <typename T>
struct SampleTaps {
  int64_t at[2];
  T weight[2];
  bool is_inside;
};

// A region along an axis.
template <typename T>
struct RegionAxis {
  T start, bin;
  int64_t samples, size;

  // `box` is x1, y1, x2, y2.
  ONNX_TRAIN_HD RegionAxis(const RegionPooling& pool, const T* box, int axis) : size(pool.sizes[axis]) {
    const T scale = static_cast<T>(pool.scale), offset = pool.half_pixel ? T(0.5) : T{0};
    const T end = box[3 - axis] * scale - offset, bins = static_cast<T>(pool.bins[axis]);
    start = box[1 - axis] * scale - offset;
    T length = end - start;
    if (!pool.half_pixel && length < 1) length = 1;
    bin = length / bins;
    constexpr int64_t kMost = int64_t{1} << 30;
    const T wanted = std::ceil(length / bins);
    samples = pool.sampling > 0 ? pool.sampling
              : wanted >= 1     ? (wanted < static_cast<T>(kMost) ? static_cast<int64_t>(wanted) : kMost)
                                : 0;
  }

  ONNX_TRAIN_HD T coordinate(int64_t p, int64_t i) const {
    return start + static_cast<T>(p) * bin + (static_cast<T>(i) + T(0.5)) * bin / static_cast<T>(samples);
  }
  // Samples outside of [first, last) of a bin are outside of the image.
  ONNX_TRAIN_HD void find_samples(int64_t p, int64_t* first, int64_t* last) const {
    *first = 0;
    *last = samples;
    const T step = bin / static_cast<T>(samples > 0 ? samples : 1), begin = start + static_cast<T>(p) * bin;
    if (!(step > 0)) return;
    const T before = (-1 - begin) / step - 2, after = (static_cast<T>(size) - begin) / step + 2;
    if (before > 0) *first = before < static_cast<T>(samples) ? static_cast<int64_t>(before) : samples;
    if (after < static_cast<T>(samples)) *last = after > 0 ? static_cast<int64_t>(after) : 0;
  }
  ONNX_TRAIN_HD SampleTaps<T> taps(int64_t p, int64_t i) const {
    T x = coordinate(p, i);
    SampleTaps<T> taps = {{0, 0}, {0, 0}, x >= -1 && x <= static_cast<T>(size) && size > 0};
    if (!taps.is_inside) return taps;
    if (x < 0) x = 0;
    const auto low = static_cast<int64_t>(x);
    const bool is_last = low >= size - 1;
    taps.at[0] = is_last ? size - 1 : low;
    taps.at[1] = is_last ? size - 1 : low + 1;
    taps.weight[1] = is_last ? T{0} : x - static_cast<T>(low);
    taps.weight[0] = 1 - taps.weight[1];
    return taps;
  }

  // Fills the row of bin p of the matrix, `size` zeros, and stores the pixels [first, last) beyond which it has zeros.
  ONNX_TRAIN_HD void fill_row(int64_t p, T* row, int64_t* range) const {
    range[0] = size;
    range[1] = 0;
    int64_t first = 0, last = 0;
    find_samples(p, &first, &last);
    for (int64_t i = first; i < last; ++i) {
      const SampleTaps<T> sample = taps(p, i);
      if (!sample.is_inside) continue;
      for (int k = 0; k < 2; ++k) {
        row[sample.at[k]] += sample.weight[k] / static_cast<T>(samples);
        if (sample.at[k] < range[0]) range[0] = sample.at[k];
        if (sample.at[k] >= range[1]) range[1] = sample.at[k] + 1;
      }
    }
  }
};

// The largest product of a weight and a pixel in a bin.
template <typename T>
struct LargestTap {
  T value;
  int64_t pixel;  // -1: there is no sample, or the largest is one outside of the image, which counts as 0
  T weight;
};

template <typename T>
ONNX_TRAIN_HD inline LargestTap<T> find_largest_tap(const RegionAxis<T>& rows, const RegionAxis<T>& columns, int64_t p,
                                                    int64_t q, const T* image) {
  int64_t row_samples[2], column_samples[2];
  rows.find_samples(p, &row_samples[0], &row_samples[1]);
  columns.find_samples(q, &column_samples[0], &column_samples[1]);
  bool has_outside = row_samples[1] - row_samples[0] < rows.samples ||
                     column_samples[1] - column_samples[0] < columns.samples || rows.samples == 0 ||
                     columns.samples == 0;
  LargestTap<T> best = {0, -1, 0};
  bool is_first = true;
  for (int64_t i = row_samples[0]; i < row_samples[1]; ++i) {
    const SampleTaps<T> row = rows.taps(p, i);
    for (int64_t j = column_samples[0]; j < column_samples[1]; ++j) {
      const SampleTaps<T> column = columns.taps(q, j);
      if (!row.is_inside || !column.is_inside) {
        has_outside = true;
        continue;
      }
      for (int k = 0; k < 4; ++k) {
        const int64_t pixel = row.at[k / 2] * columns.size + column.at[k % 2];
        const T weight = row.weight[k / 2] * column.weight[k % 2], value = weight * image[pixel];
        if (!is_first && !(value > best.value)) continue;
        best = {value, pixel, weight};
        is_first = false;
      }
    }
  }
  if (is_first || (has_outside && best.value < 0)) return {0, -1, 0};
  return best;
}

// Stores the pixels [first, last) of bin p along an axis, as Caffe and ONNX Runtime find them.
template <typename T>
ONNX_TRAIN_HD inline void find_pixels(const RegionPooling& pool, const T* box, int axis, int64_t p, int64_t* range) {
  const T scale = static_cast<T>(pool.scale), size = static_cast<T>(pool.sizes[axis]);
  const T start = std::round(box[1 - axis] * scale), length = std::round(box[3 - axis] * scale) - start + 1;
  const T bin = (length > 1 ? length : T{1}) / static_cast<T>(pool.bins[axis]);
  const T ends[2] = {start + std::floor(static_cast<T>(p) * bin), start + std::ceil(static_cast<T>(p + 1) * bin)};
  for (int k = 0; k < 2; ++k) {
    range[k] = !(ends[k] > 0) ? 0 : ends[k] < size ? static_cast<int64_t>(ends[k]) : pool.sizes[axis];
  }
}

// The first of the largest pixels of a bin; 0 for an empty bin.
template <typename T>
ONNX_TRAIN_HD inline LargestTap<T> find_largest_pixel(const RegionPooling& pool, const T* box, int64_t p, int64_t q,
                                                      const T* image) {
  int64_t rows[2], columns[2];
  find_pixels(pool, box, 0, p, rows);
  find_pixels(pool, box, 1, q, columns);
  LargestTap<T> best = {0, -1, 0};
  for (int64_t h = rows[0]; h < rows[1]; ++h) {
    for (int64_t w = columns[0]; w < columns[1]; ++w) {
      const int64_t pixel = h * pool.sizes[1] + w;
      if (best.pixel < 0 || image[pixel] > best.value) best = {image[pixel], pixel, 1};
    }
  }
  return best;
}

// What a bin takes, in either operator.
template <typename T>
ONNX_TRAIN_HD inline LargestTap<T> find_largest(const RegionPooling& pool, const T* box, int64_t p, int64_t q,
                                                const T* image) {
  if (pool.whole_pixels) return find_largest_pixel(pool, box, p, q, image);
  return find_largest_tap(RegionAxis<T>(pool, box, 0), RegionAxis<T>(pool, box, 1), p, q, image);
}

}  // namespace onnx_train
