// Operators along one axis, for the kernels of every device: CumSum, CumProd, ArgMax, ArgMin, TopK, OneHot, Compress. A
// line consists of the elements along the axis with all other indices fixed. Plain values and pure functions; any
// thread. They throw Error that names the node.
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/geometry/indexing/axis_view.h"
#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace onnx_train {

// y_i = Σ x_j over j ≤ i (j < i if exclusive), from the other end if reverse; or the product
struct Cumulative {
  AxisView x;
  bool exclusive, reverse;
};
Cumulative cumulative_of(const NodeSpec& spec);
bool supports_cumulative(const NodeSpec& spec);

// LinearScan: y_i = a_{i-1} y_{i-1} + b_{i-1}, y_0 = first, from the other end if reverse.
struct LinearScan {
  AxisView x;
  bool reverse;
  double first;
};
LinearScan linear_scan_of(const NodeSpec& spec);
bool supports_linear_scan(const NodeSpec& spec);

// The index of the first (or last) maximum or minimum of each line.
struct Extremum {
  AxisView x;
  bool last;
  int64_t size;  // size of the axis without padding (the attribute `classes`: pad_classes.cc)
};
Extremum extremum_of(const NodeSpec& spec);
bool supports_extremum(const NodeSpec& spec);

// The first k elements of each line in order, with their indices; equal elements keep their order.
struct Leaders {
  AxisView x;
  int64_t k;
  bool largest;
};
Leaders leaders_of(const NodeSpec& spec);
bool supports_top_k(const NodeSpec& spec);

// SortRows (kernels/functions/selections.cc).
bool supports_sort_rows(const NodeSpec& spec);

// Whether a comes before b: a is larger or, without `largest`, smaller. NaN counts as the largest.
template <typename T>
ONNX_TRAIN_HD inline bool comes_before(bool largest, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a || b != b) return largest ? a != a && b == b : a == a && b != b;
  }
  return largest ? a > b : a < b;
}

// OneHot: y = values[1] at the positions along the axis that the indices select, values[0] elsewhere. Indices outside
// the axis select no position.
AxisView one_hot_axis(const NodeSpec& spec);
bool supports_one_hot(const NodeSpec& spec);

// Returns the position that an index selects, or -1.
template <typename T>
ONNX_TRAIN_HD inline int64_t hot_position(T index, int64_t depth) {
  const double number = static_cast<double>(index), end = static_cast<double>(depth);
  if (!(number >= -end && number < end)) return -1;
  return static_cast<int64_t>(number) + (number < 0 ? depth : 0);
}

// Compress: the kept positions of the axis; without an axis x is flat.
struct KeptPlaces {
  AxisView x;
  std::vector<int64_t> places;
};
KeptPlaces kept_places(const NodeSpec& spec);
bool supports_compress(const NodeSpec& spec);

}  // namespace onnx_train
