// bitsandbytes' "dynamic" map: the 256 numbers that a moment of 8 bits can have, in units of the largest magnitude of
// its block. Plain values; any thread.
//
// The map has decades. Decade j = first..last has 2ʲ numbers, the middles of as many equal parts of
// [0.1, 1]·10^(j - last). Before the first decade is 0, after the last one 1. Moments with signs have the decades 0 to
// 6 on both sides of zero (without -1), others 1 to 7.
#pragma once

#include <cstdint>
#include <vector>

namespace onnx_train {

// Elements of a block.
inline constexpr int64_t kQuantizedBlock = 256;

struct DynamicMap {
  int first, last;
  bool has_signs;

  // 10^(decade - last), the nearest double, which std::pow of some C libraries is not.
  double scale(int decade) const {
    double inverse = 1;
    for (int i = decade; i < last; ++i) inverse *= 10;
    return 1 / inverse;
  }
  // The numbers of a decade, from 0 on.
  double number(int decade, int i) const { return scale(decade) * (0.1 + 0.9 * (i + 0.5) / (1 << decade)); }
  double least() const { return number(first, 0); }
  double largest(int decade) const { return number(decade, (1 << decade) - 1); }

  std::vector<double> magnitudes() const {
    std::vector<double> all = {0};
    for (int decade = first; decade <= last; ++decade) {
      for (int i = 0; i < 1 << decade; ++i) all.push_back(number(decade, i));
    }
    all.push_back(1);
    return all;
  }
  // All 256, ascending.
  std::vector<double> numbers() const {
    std::vector<double> all = magnitudes();
    if (!has_signs) return all;
    std::vector<double> both;
    for (size_t i = all.size() - 2; i > 0; --i) both.push_back(-all[i]);
    both.insert(both.end(), all.begin(), all.end());
    return both;
  }
};

inline constexpr DynamicMap kSignedMap = {0, 6, true}, kUnsignedMap = {1, 7, false};
inline constexpr int kZeroPlace = 127;  // of the map with signs

}  // namespace onnx_train
