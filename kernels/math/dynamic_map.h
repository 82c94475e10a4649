// Numbers of a block in bitsandbytes' dynamic map (onnx_passes/functions/dynamic_map.h): from a number to its place and
// back. Stateless; host and device code share them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"
#include "onnx_passes/functions/dynamic_map.h"

namespace onnx_train::math {

template <typename T>
class MapPlaces {
 public:
  explicit MapPlaces(const DynamicMap& map)
      : first_(map.first),
        zero_(map.has_signs ? kZeroPlace : 0),
        least_(static_cast<T>(map.least() / 2)),
        most_(static_cast<T>((map.largest(map.last) + 1) / 2)) {
    for (int i = 0; i < kDecades; ++i) {
      const int decade = map.first + i;
      scales_[i] = map.scale(decade);
      slopes_[i] = static_cast<T>((1 << decade) / (0.9 * map.scale(decade)));
      counts_[i] = static_cast<T>(1 << decade);
      borders_[i] = i == 0 ? T{0} : static_cast<T>((map.largest(decade - 1) + map.number(decade, 0)) / 2);
    }
  }

  // The place of the number next to x, of [-1, 1]; of [0, 1] without signs.
  ONNX_TRAIN_HD uint8_t place(T x) const {
    const T magnitude = std::abs(x);
    T slope = slopes_[0], count = counts_[0];
    for (int i = 1; i < kDecades; ++i) {
      slope = magnitude > borders_[i] ? slopes_[i] : slope;
      count = magnitude > borders_[i] ? counts_[i] : count;
    }
    const T part = magnitude * slope + count * static_cast<T>(8.0 / 9);
    const T bounded = part < count ? count : part;
    const T last = T{2} * count - T{1};
    T at = std::floor(bounded < last ? bounded : last) - static_cast<T>(first_);
    at = magnitude > most_ ? static_cast<T>(last_place()) : at;
    at = magnitude > least_ ? at : T{0};  // also NaN
    const T below = at < T{kZeroPlace} ? -at : T{-kZeroPlace};
    return static_cast<uint8_t>(zero_ + static_cast<int>(x < T{0} ? below : at));
  }

  // The number at a place.
  ONNX_TRAIN_HD T number(uint8_t place) const {
    const int steps = place - zero_, magnitude = steps < 0 ? -steps : steps;
    if (magnitude == 0) return T{0};
    if (magnitude == last_place()) return T{1};
    const int at = magnitude + first_;
    int decade = 0;
    while (at >> (decade + 1) > 0) ++decade;
    const int count = 1 << decade;
    const double x = scales_[decade - first_] * (0.1 + 0.9 * (at - count + 0.5) / count);
    return static_cast<T>(steps < 0 ? -x : x);
  }

 private:
  static constexpr int kDecades = 7;
  ONNX_TRAIN_HD int last_place() const { return (1 << (first_ + kDecades)) - first_; }

  int first_, zero_;
  T least_, most_, slopes_[kDecades], counts_[kDecades], borders_[kDecades];
  double scales_[kDecades];
};

}  // namespace onnx_train::math
