#include "kernels/geometry/resampling.h"

#include <algorithm>
#include <numeric>

#include "kernels/dispatch.h"

namespace onnx_train {
namespace {

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
