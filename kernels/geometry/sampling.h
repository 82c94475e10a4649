// The pixels that an interpolated image reads at a point, and their weights: for the kernels of every device. An image
// has three spatial axes, the outermost first; images with fewer have leading axes of size 1. Plain values and pure
// functions; any thread. find_sampling throws Error that names the node.
//
// Formulas are those of ONNX's GridSample. Cubic weights: R. Keys, "Cubic convolution interpolation for digital image
// processing", 1981, with a = -0.75.
#pragma once

#include <cmath>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

enum class Interpolation { kNearest, kLinear, kCubic };
enum class Outside { kZeros, kBorder, kReflection };  // what an image shows beyond its border

struct Sampling {
  Interpolation mode = Interpolation::kLinear;
  Outside outside = Outside::kZeros;
  bool align_corners = false;  // the border is at the centers of the outermost pixels, not at their edges
  bool normalized = false;     // coordinates are -1 and 1 at the border, not numbers of pixels
  int axes = 0;                // coordinates of a point, the innermost axis first
  int64_t sizes[3] = {1, 1, 1};
  int64_t images = 0, channels = 0, points = 0;  // points of an image

  ONNX_TRAIN_HD int64_t pixels() const { return sizes[0] * sizes[1] * sizes[2]; }
};

// The sampling of a node's images of shape `x` at points of shape `points`.
Sampling find_sampling(const NodeSpec& spec, const Shape& x, const Shape& points);
// The taps that an interpolation reads along one axis: 1, 2 or 4.
int taps_of(Interpolation mode);
// Whether all inputs from `first` on that hold numbers, and the output, are float or double.
bool supports_sampling(const NodeSpec& spec);

// The pixels that a point reads along one axis, -1 beyond an image of zeros, their weights, and the derivatives of the
// weights by the point's coordinate as it is stored.
template <typename T, int kTaps>
struct AxisTaps {
  int64_t at[kTaps];
  T weight[kTaps], slope[kTaps];
};

// Reflects a pixel's number at the border of an axis.
ONNX_TRAIN_HD inline int64_t reflected(int64_t at, int64_t size, bool align_corners) {
  const int64_t period = align_corners ? 2 * (size - 1) : 2 * size;
  if (period <= 0) return 0;
  const int64_t rest = (at % period + period) % period, mirrored = period - (align_corners ? 0 : 1) - rest;
  return rest < mirrored ? rest : mirrored;
}

// Moves a coordinate that is outside of the border inside; multiplies *slope by its derivative.
template <typename T>
ONNX_TRAIN_HD inline T moved_inside(const Sampling& s, int64_t size, T x, T* slope) {
  const T low = s.align_corners ? T{0} : T(-0.5), high = static_cast<T>(size - 1) - low;
  if (s.outside == Outside::kZeros || (x >= low && x <= high)) return x;
  if (s.outside == Outside::kBorder) {
    *slope = 0;
    return x < low ? T{0} : x > high ? static_cast<T>(size - 1) : x;
  }
  const T span = high > low ? high - low : T{1}, way = x < low ? low - x : x - high;
  const T turns = std::floor(way / span), rest = way - turns * span;
  const bool is_even = turns == 2 * std::floor(turns / 2);
  if (is_even) *slope = -*slope;
  return (x < low) == is_even ? low + rest : high - rest;
}

template <int kTaps, typename T>
ONNX_TRAIN_HD inline void find_weights(T t, T (&weight)[kTaps], T (&slope)[kTaps]) {
  if constexpr (kTaps == 1) {
    weight[0] = 1;
    slope[0] = 0;
  } else if constexpr (kTaps == 2) {
    weight[0] = 1 - t;
    weight[1] = t;
    slope[0] = -1;
    slope[1] = 1;
  } else {
    constexpr T a = T(-0.75);
    for (int k = 0; k < kTaps; ++k) {
      const T d = k < 2 ? t + static_cast<T>(1 - k) : static_cast<T>(k - 1) - t, sign = k < 2 ? T{1} : T{-1};
      if (k == 0 || k == 3) {
        weight[k] = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        slope[k] = sign * ((3 * a * d - 10 * a) * d + 8 * a);
      } else {
        weight[k] = ((a + 2) * d - (a + 3)) * d * d + 1;
        slope[k] = sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
      }
    }
  }
}

// The taps of a coordinate along an axis. A coordinate that is no number gives weights that are none.
template <int kTaps, typename T>
ONNX_TRAIN_HD inline AxisTaps<T, kTaps> taps_along(const Sampling& s, int64_t size, T coordinate) {
  const auto length = static_cast<T>(size);
  T x = coordinate, scale = 1;
  if (s.normalized) {
    scale = (s.align_corners ? length - 1 : length) / 2;
    x = s.align_corners ? (x + 1) / 2 * (length - 1) : ((x + 1) * length - 1) / 2;
  }
  if constexpr (kTaps == 1) x = std::nearbyint(x);
  x = moved_inside(s, size, x, &scale);
  const T floor = std::floor(x);
  AxisTaps<T, kTaps> taps;
  find_weights<kTaps>(x - floor, taps.weight, taps.slope);
  // From further away all taps are outside.
  const T bounded = floor > -4 ? floor < length + 4 ? floor : length + 4 : T{-4};
  const int64_t first = static_cast<int64_t>(bounded) - (kTaps == 4 ? 1 : 0);
  for (int k = 0; k < kTaps; ++k) {
    int64_t at = first + k;
    taps.slope[k] *= scale;
    if (x != x) taps.weight[k] = taps.slope[k] = x;
    if (s.outside == Outside::kReflection) at = reflected(at, size, s.align_corners);
    if (s.outside == Outside::kBorder || x != x) at = at < 0 ? 0 : at < size ? at : size - 1;
    taps.at[k] = at >= 0 && at < size ? at : -1;
  }
  return taps;
}

// The taps of a point along the three axes; axes that the image does not have read their only pixel.
template <typename T, int kTaps>
struct PointTaps {
  AxisTaps<T, kTaps> axis[3];
  int count[3];

  ONNX_TRAIN_HD PointTaps(const Sampling& s, const T* point) {
    for (int k = 0; k < 3; ++k) {
      const bool is_sampled = k >= 3 - s.axes;
      count[k] = is_sampled ? kTaps : 1;
      if (is_sampled) {
        axis[k] = taps_along<kTaps>(s, s.sizes[k], point[2 - k]);
      } else {
        axis[k].at[0] = 0;
        axis[k].weight[0] = 1;
        axis[k].slope[0] = 0;
      }
    }
  }

  // Calls f(tap, pixel or -1, weights of the three axes, their slopes) for each combination of taps.
  template <typename F>
  ONNX_TRAIN_HD void for_each(const Sampling& s, F&& f) const {
    int tap = 0;
    for (int i = 0; i < count[0]; ++i) {
      for (int j = 0; j < count[1]; ++j) {
        for (int k = 0; k < count[2]; ++k, ++tap) {
          const int64_t z = axis[0].at[i], y = axis[1].at[j], x = axis[2].at[k];
          const int64_t pixel = z < 0 || y < 0 || x < 0 ? -1 : (z * s.sizes[1] + y) * s.sizes[2] + x;
          const T weight[3] = {axis[0].weight[i], axis[1].weight[j], axis[2].weight[k]};
          const T slope[3] = {axis[0].slope[i], axis[1].slope[j], axis[2].slope[k]};
          f(tap, pixel, weight, slope);
        }
      }
    }
  }
};

// The derivative of a tap's weight by the coordinate of axis k.
template <typename T>
ONNX_TRAIN_HD inline T slope_along(int k, const T (&weight)[3], const T (&slope)[3]) {
  return (k == 0 ? slope[0] : weight[0]) * (k == 1 ? slope[1] : weight[1]) * (k == 2 ? slope[2] : weight[2]);
}

// Calls f(std::integral_constant<int, taps along an axis>).
template <typename F>
auto dispatch_taps(Interpolation mode, F&& f) {
  if (mode == Interpolation::kNearest) return f(std::integral_constant<int, 1>());
  if (mode == Interpolation::kLinear) return f(std::integral_constant<int, 2>());
  return f(std::integral_constant<int, 4>());
}

}  // namespace onnx_train
