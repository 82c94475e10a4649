#include "onnx_passes/operators/resampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

std::vector<int64_t> resize_axes(const Node& node, int64_t rank) {
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (!node.has_attr("axes")) return axes;
  axes = node.attr("axes", axes);
  for (int64_t& axis : axes) axis = normalize_axis(axis, rank);
  std::vector<int64_t> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail(node.label(), ": axes holds an axis twice");
  return axes;
}

Attrs resize_attrs(const Node& node, const std::vector<int64_t>& axes) {
  return {
      {"axes", axes},
      {"mode", node.attr("mode", "nearest")},
      {"coordinate_transformation_mode", node.attr("coordinate_transformation_mode", "half_pixel")},
      {"nearest_mode", node.attr("nearest_mode", "round_prefer_floor")},
      {"keep_aspect_ratio_policy", node.attr("keep_aspect_ratio_policy", "stretch")},
      {"antialias", node.attr("antialias", 0)},
      {"exclude_outside", node.attr("exclude_outside", 0)},
      {"cubic_coeff_a", node.attr("cubic_coeff_a", -0.75f)},
  };
}

int64_t scaled_size(int64_t size, double scale) {
  constexpr double kRounding = 0x1p-24, kLarge = 0x1p20;  // for larger sizes rounding may be several elements
  const double product = static_cast<double>(size) * scale, nearest = std::nearbyint(product);
  if (!(std::abs(product) < 0x1p62)) return 0;
  const bool is_meant = product < kLarge && std::abs(product - nearest) <= product * kRounding;
  return static_cast<int64_t>(is_meant ? nearest : std::floor(product));
}

bool resize_has_input(const Node& node, int i) {
  const Value* value = node.input(i);
  if (!value) return false;
  const bool empty = value->type().is_static() && num_elements(value->type().shape()) == 0;
  return !empty && !(value->elements() && value->elements()->empty());
}

}  // namespace onnx_train
