#include "tools/run_report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace onnx_train {

Series thinned(const Series& series, size_t points) {
  const size_t n = series.size();
  if (n <= points) return series;
  const size_t parts = std::max<size_t>(points / 2, 1);
  Series thin;
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * n / parts, end = (part + 1) * n / parts;
    size_t low = n, high = n, missing = n;
    for (size_t i = begin; i < end; ++i) {
      const double y = series.y[i];
      if (std::isnan(y)) {
        if (missing == n) missing = i;
        continue;
      }
      if (low == n || y < series.y[low]) low = i;
      if (high == n || y > series.y[high]) high = i;
    }
    // The first and the last point stay, so that a curve begins and ends where the run does.
    size_t keep[] = {low, high, missing, part == 0 ? 0 : n, part + 1 == parts ? n - 1 : n};
    std::sort(std::begin(keep), std::end(keep));
    for (size_t i = 0; i < std::size(keep) && keep[i] < n; ++i) {
      if (i > 0 && keep[i] == keep[i - 1]) continue;
      thin.x.push_back(series.x[keep[i]]);
      thin.y.push_back(series.y[keep[i]]);
    }
  }
  return thin;
}

// Sums over blocks of `width` values, from their begin up to each value and from each value to their end: a window is
// the end of one block and the begin of the next. Nothing is subtracted, so that a huge value spoils no other window.
Series smoothed(const Series& series, size_t window) {
  const size_t n = series.size(), half = window / 2, width = 2 * half + 1, padded = n + 2 * half;
  struct Sum {
    double sum = 0, count = 0;
    void add(const Sum& other) {
      sum += other.sum;
      count += other.count;
    }
  };
  std::vector<Sum> to_here(padded), from_here(padded);
  for (size_t i = 0; i < n; ++i) {
    if (!std::isnan(series.y[i])) to_here[i + half] = {series.y[i], 1};
  }
  from_here = to_here;
  for (size_t i = 1; i < padded; ++i) {
    if (i % width != 0) to_here[i].add(to_here[i - 1]);
    const size_t j = padded - 1 - i;
    if ((j + 1) % width != 0) from_here[j].add(from_here[j + 1]);
  }
  Series smooth{series.x, {}};
  for (size_t i = 0; i < n; ++i) {
    Sum sum = to_here[i + width - 1];
    if (i % width != 0) sum.add(from_here[i]);
    smooth.y.push_back(sum.count > 0 ? sum.sum / sum.count : std::numeric_limits<double>::quiet_NaN());
  }
  return smooth;
}

}  // namespace onnx_train
