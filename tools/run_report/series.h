// Curves of a report: thinned to what a screen can show, and smoothed. Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

struct Series {
  std::vector<double> x, y;  // x does not fall; y is NaN where it is not finite

  size_t size() const { return x.size(); }
};

// At most about `points` points: of each of equal parts the lowest and the highest, in their order, and one that is not
// finite, if there is one.
Series thinned(const Series& series, size_t points);

// The mean over `window` values around each, as far as they are finite; NaN where none is.
Series smoothed(const Series& series, size_t window);

}  // namespace onnx_train
