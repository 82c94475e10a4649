#include "kernels/geometry/resampling.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/resampling.h"

namespace onnx_train {
namespace {

// A resized axis.
struct ResizedAxis {
  int64_t axis = 0, in = 0, out = 0;
  double scale = 1;           // divisor of coordinates: the given scale, or out / in
  double width = 0;           // scale * in: `out` before rounding
  double start = 0, end = 1;  // the region of interest of tf_crop_and_resize
};

struct Resampling {
  std::string mode, coordinates, nearest_mode;
  double cubic_a = -0.75, extrapolation_value = 0;
  bool exclude_outside = false, antialias = false;
  std::vector<ResizedAxis> axes;  // in order, without axes that keep their size
};

void check_one_of(const Node& node, const char* attribute, const std::string& value,
                  std::initializer_list<const char*> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  std::string list;
  for (const char* name : allowed) list += concat(list.empty() ? "" : ", ", name);
  fail(node.label(), ": ", attribute, " is '", value, "'; it must be one of ", list);
}

Resampling read_attributes(const Node& node) {
  Resampling r;
  r.mode = node.attr("mode", "nearest");
  r.coordinates = node.attr("coordinate_transformation_mode", "half_pixel");
  r.nearest_mode = node.attr("nearest_mode", "round_prefer_floor");
  r.cubic_a = static_cast<double>(node.attr("cubic_coeff_a", -0.75f));
  r.extrapolation_value = static_cast<double>(node.attr("extrapolation_value", 0.0f));
  r.exclude_outside = node.attr("exclude_outside", 0) != 0;
  r.antialias = node.attr("antialias", 0) != 0;
  check_one_of(node, "mode", r.mode, {"nearest", "linear", "cubic"});
  check_one_of(node, "nearest_mode", r.nearest_mode, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  check_one_of(node, "coordinate_transformation_mode", r.coordinates,
               {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                "tf_crop_and_resize"});
  check_one_of(node, "keep_aspect_ratio_policy", node.attr("keep_aspect_ratio_policy", "stretch"),
               {"stretch", "not_larger", "not_smaller"});
  if (r.antialias && r.mode == "nearest") fail(node.label(), ": antialias needs mode linear or cubic");
  if (!std::isfinite(r.cubic_a)) fail(node.label(), ": cubic_coeff_a is not a finite number");
  return r;
}

void check_count(const Node& node, const char* input, const Tensor& tensor, size_t wanted) {
  if (tensor.size() == static_cast<int64_t>(wanted)) return;
  fail(node.label(), ": ", input, " has ", tensor.size(), " numbers; it needs ", wanted);
}

bool is_given(const Tensor& tensor) { return !tensor.empty() && tensor.size() > 0; }

// The common scale of all axes for which no output is larger (or smaller) than its size.
double common_scale(const Node& node, const std::vector<ResizedAxis>& axes, const Tensor& sizes) {
  if (!is_given(sizes)) fail(node.label(), ": keep_aspect_ratio_policy needs sizes that are known before it runs");
  check_count(node, "sizes", sizes, axes.size());
  const bool smallest = node.attr("keep_aspect_ratio_policy", "stretch") == "not_larger";
  double common = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const double scale = sizes.at(static_cast<int64_t>(i)) / static_cast<double>(axes[i].in);
    common = i == 0 ? scale : smallest ? std::min(common, scale) : std::max(common, scale);
  }
  return common;
}

void set_scales(const Node& node, const Tensor& scales, const Tensor& sizes, std::vector<ResizedAxis>* axes) {
  const bool stretches = node.attr("keep_aspect_ratio_policy", "stretch") == "stretch";
  if (is_given(scales)) check_count(node, "scales", scales, axes->size());
  const double common = stretches ? 0 : common_scale(node, *axes, sizes);
  for (size_t i = 0; i < axes->size(); ++i) {
    ResizedAxis& a = (*axes)[i];
    if (!is_given(scales) && stretches) {
      a.scale = static_cast<double>(a.out) / static_cast<double>(a.in);
      a.width = static_cast<double>(a.out);
      continue;
    }
    a.scale = stretches ? scales.at(static_cast<int64_t>(i)) : common;
    a.width = a.scale * static_cast<double>(a.in);
    // Rounded down (scaled_size) if scales are given, to nearest if sizes are given.
    const double more = a.width - static_cast<double>(a.out);
    if (!(a.scale > 0) || !std::isfinite(a.scale) || !(more > -0.51 && more < 1)) {
      fail(node.label(), ": scale ", a.scale, " does not make ", a.out, " elements of ", a.in);
    }
  }
}

void set_regions(const Node& node, const Tensor& roi, std::vector<ResizedAxis>* axes) {
  if (!is_given(roi)) fail(node.label(), ": tf_crop_and_resize needs a roi that is known before it runs");
  check_count(node, "roi", roi, 2 * axes->size());
  for (size_t i = 0; i < axes->size(); ++i) {
    ResizedAxis& a = (*axes)[i];
    a.start = roi.at(static_cast<int64_t>(i));
    a.end = roi.at(static_cast<int64_t>(i + axes->size()));
    if (!std::isfinite(a.start) || !std::isfinite(a.end)) fail(node.label(), ": roi holds a number that is not finite");
  }
}

// ---- Coordinates and weights

// The input coordinate of output position y.
double coordinate(const std::string& mode, const ResizedAxis& a, double y) {
  const double in = static_cast<double>(a.in);
  if (mode == "align_corners") return a.width == 1 ? 0 : y * (in - 1) / (a.width - 1);
  if (mode == "asymmetric") return y / a.scale;
  if (mode == "tf_crop_and_resize") {
    const double x = a.width == 1 ? (a.end - a.start) * (in - 1) / 2 : y * (a.end - a.start) * (in - 1) / (a.width - 1);
    return x + a.start * (in - 1);
  }
  if (mode == "pytorch_half_pixel" && a.width == 1) return -0.5;
  const double offset = mode == "half_pixel_symmetric" ? in / 2 * (1 - static_cast<double>(a.out) / a.width) : 0;
  return offset + (y + 0.5) / a.scale - 0.5;
}

double nearest_place(const std::string& mode, double x) {
  const double floor = std::floor(x), rest = x - floor;
  const bool up = mode == "round_prefer_floor"  ? rest > 0.5
                  : mode == "round_prefer_ceil" ? rest >= 0.5
                                                : mode == "ceil" && rest > 0;
  return floor + (up ? 1 : 0);
}

// The weight of an element at this distance; cubic: https://ieeexplore.ieee.org/document/1163711, equation 4.
double kernel(const Resampling& r, double distance) {
  const double d = std::abs(distance), a = r.cubic_a;
  if (r.mode == "linear") return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// The entries of one row by ascending column. Positions outside the input use the first or last element.
class Row {
 public:
  Row(const Resampling& resampling, const ResizedAxis& axis) : r_(resampling), in_(axis.in) {
    stretch_ = r_.antialias ? std::min(axis.scale, 1.0) : 1;
    reach_ = static_cast<int64_t>(std::ceil((r_.mode == "linear" ? 1 : 2) / stretch_));
  }

  // Appends the row of coordinate x to the matrix.
  void add(double x, SparseMatrix* matrix) {
    weights_.clear();
    if (r_.mode == "nearest") {
      first_ = static_cast<int64_t>(nearest_place(r_.nearest_mode, std::clamp(x, -2.0, static_cast<double>(in_) + 1)));
      weights_.push_back(1);
    } else {
      weigh(x);
    }
    if (r_.exclude_outside) exclude();
    const size_t begin = matrix->entries.size();
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] == 0) continue;
      const int64_t column = std::clamp<int64_t>(first_ + static_cast<int64_t>(i), 0, in_ - 1);
      if (matrix->entries.size() > begin && matrix->entries.back().column == column) {
        matrix->entries.back().weight += weights_[i];
      } else {
        matrix->entries.push_back({column, weights_[i]});
      }
    }
  }

 private:
  void weigh(double x) {
    // Further away the row does not change.
    x = std::clamp(x, static_cast<double>(-reach_), static_cast<double>(in_ - 1 + reach_));
    first_ = static_cast<int64_t>(std::floor(x)) - reach_;
    double total = 0;
    for (int64_t i = 0; i < 2 * reach_ + 2; ++i) {
      weights_.push_back(kernel(r_, std::abs(static_cast<double>(first_ + i) - x) * stretch_));
      total += weights_.back();
    }
    if (r_.antialias) divide_by(total);
  }

  void exclude() {
    double total = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const int64_t place = first_ + static_cast<int64_t>(i);
      if (place < 0 || place >= in_) weights_[i] = 0;
      total += weights_[i];
    }
    if (total != 0) divide_by(total);
  }

  void divide_by(double total) {
    for (double& weight : weights_) weight /= total;
  }

  const Resampling& r_;
  int64_t in_, first_ = 0, reach_ = 0;
  double stretch_ = 1;
  std::vector<double> weights_;  // of positions from first_ on
};

// `node` is a Resize or ResizeGrad of images of shape `x` to shape `y`. Reads those of roi, scales and sizes that the
// attributes require; empty tensors are absent or unknown inputs. Throws Error for attributes, numbers or shapes that
// do not fit together.
Resampling find_resampling(const Node& node, const Shape& x, const Shape& y, const Tensor& roi, const Tensor& scales,
                           const Tensor& sizes) {
  Resampling r = read_attributes(node);
  if (x.size() != y.size()) fail(node.label(), ": it makes ", to_string(y), " of ", to_string(x));
  for (const int64_t axis : resize_axes(node, static_cast<int64_t>(x.size()))) {
    const auto i = static_cast<size_t>(axis);
    r.axes.push_back({.axis = axis, .in = x[i], .out = y[i]});
  }
  set_scales(node, scales, sizes, &r.axes);
  if (r.coordinates == "tf_crop_and_resize") set_regions(node, roi, &r.axes);
  std::sort(r.axes.begin(), r.axes.end(), [](const auto& a, const auto& b) { return a.axis < b.axis; });
  Shape resized = x;
  for (const ResizedAxis& a : r.axes) resized[static_cast<size_t>(a.axis)] = a.out;
  if (resized != y) fail(node.label(), ": it makes ", to_string(y), " of ", to_string(x));
  std::erase_if(r.axes, [](const ResizedAxis& a) {
    return a.in == a.out && (a.in == 0 || (std::abs(a.scale - 1) <= 1e-9 && a.start == 0 && a.end == 1));
  });
  for (const ResizedAxis& a : r.axes) {
    if (a.in == 0 && a.out > 0) fail(node.label(), ": axis ", a.axis, " has no elements to make ", a.out, " of");
  }
  return r;
}

SparseMatrix interpolation_matrix(const Resampling& resampling, const ResizedAxis& axis) {
  SparseMatrix matrix;
  matrix.columns = axis.in;
  if (axis.out == 0) return matrix;
  Row row(resampling, axis);
  const bool crops = resampling.coordinates == "tf_crop_and_resize";
  for (int64_t y = 0; y < axis.out; ++y) {
    const double x = coordinate(resampling.coordinates, axis, static_cast<double>(y));
    if (crops && !(x >= 0 && x <= static_cast<double>(axis.in - 1))) {
      matrix.outside.push_back(y);
    } else {
      row.add(x, &matrix);
    }
    matrix.begin.push_back(static_cast<int64_t>(matrix.entries.size()));
  }
  return matrix;
}

// Drops `outside`: a constant has no gradient.
SparseMatrix transpose(const SparseMatrix& matrix) {
  SparseMatrix result;
  result.columns = matrix.rows();
  result.begin.assign(static_cast<size_t>(matrix.columns) + 1, 0);
  for (const auto& entry : matrix.entries) ++result.begin[static_cast<size_t>(entry.column) + 1];
  std::partial_sum(result.begin.begin(), result.begin.end(), result.begin.begin());
  std::vector<int64_t> next = result.begin;
  result.entries.resize(matrix.entries.size());
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    for (int64_t i = matrix.begin[static_cast<size_t>(row)]; i < matrix.begin[static_cast<size_t>(row) + 1]; ++i) {
      const auto& entry = matrix.entries[static_cast<size_t>(i)];
      const auto at = static_cast<size_t>(next[static_cast<size_t>(entry.column)]++);
      result.entries[at] = {row, entry.weight};
    }
  }
  return result;
}

// ---- Nodes

ResampledAxes find_axes(const NodeSpec& spec, const Shape& x, const Shape& y, bool transposed) {
  const auto constant = [&](int i) { return spec.is_constant(i) ? spec.constant(i) : Tensor(); };
  const int first = transposed ? 2 : 1;  // ResizeGrad has the shape of x in front of roi, scales and sizes
  const Resampling r = find_resampling(spec.node(), x, y, constant(first), constant(first + 1), constant(first + 2));
  ResampledAxes found;
  found.outside = r.extrapolation_value;
  size_t at = 0;
  int64_t* between = &found.outer;
  found.axes.reserve(r.axes.size());
  for (const ResizedAxis& a : r.axes) {
    for (; at < static_cast<size_t>(a.axis); ++at) *between *= x[at];
    ++at;
    const SparseMatrix matrix = interpolation_matrix(r, a);
    found.axes.push_back({transposed ? transpose(matrix) : matrix});
    between = &found.axes.back().between;
  }
  for (; at < x.size(); ++at) *between *= x[at];
  return found;
}

// Whether the inputs that define the matrices are known, starting with input `roi`.
bool is_planned(const NodeSpec& spec, int roi) {
  const bool crops = spec.node().attr("coordinate_transformation_mode", "") == "tf_crop_and_resize";
  const auto known = [&](int i) { return i >= spec.num_inputs() || !spec.has_input(i) || spec.is_constant(i); };
  return (!crops || known(roi)) && known(roi + 1) && known(roi + 2);
}

}  // namespace

ResampledAxes resize_matrices(const NodeSpec& spec) {
  return find_axes(spec, spec.in_shape(), spec.out_shape(), false);
}

ResampledAxes resize_grad_matrices(const NodeSpec& spec) {
  return find_axes(spec, spec.out_shape(), spec.in_shape(0), true);
}

std::vector<size_t> order_of(const std::vector<ResampledAxis>& axes) {
  std::vector<size_t> order(axes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto growth = [&](size_t i) { return static_cast<double>(axes[i].out()) / static_cast<double>(axes[i].in()); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (growth(a) != growth(b)) return growth(a) < growth(b);
    return growth(a) < 1 ? a < b : a > b;
  });
  return order;
}

bool only_moves(const NodeSpec& spec) {
  return spec.node().attr("mode", "nearest") == "nearest" &&
         spec.node().attr("coordinate_transformation_mode", "") != "tf_crop_and_resize";
}

bool supports_resize(const NodeSpec& spec) {
  return is_movable(spec.in_type()) && spec.one_type(1) && is_planned(spec, 1);
}

bool supports_resize_grad(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && spec.one_type(1) && is_planned(spec, 2);
}

}  // namespace onnx_train
