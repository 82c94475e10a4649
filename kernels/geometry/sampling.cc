#include "kernels/geometry/sampling.h"

#include <algorithm>
#include <climits>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Interpolation interpolation_of(const Node& node) {
  const std::string mode = node.attr("mode", "linear");
  if (mode == "nearest") return Interpolation::kNearest;
  return mode == "linear" ? Interpolation::kLinear : Interpolation::kCubic;
}

Outside outside_of(const Node& node) {
  const std::string mode = node.attr("padding_mode", "zeros");
  if (mode == "border") return Outside::kBorder;
  return mode == "zeros" ? Outside::kZeros : Outside::kReflection;
}

}  // namespace

Sampling find_sampling(const NodeSpec& spec, const Shape& x, const Shape& points) {
  const Node& node = spec.node();
  Sampling s;
  s.mode = interpolation_of(node);
  s.outside = outside_of(node);
  s.align_corners = node.attr("align_corners", 0) != 0;
  s.normalized = node.domain().empty() || node.attr("normalized", 0) != 0;
  s.axes = static_cast<int>(x.size()) - 2;
  std::copy(x.begin() + 2, x.end(), s.sizes + 3 - s.axes);
  s.images = x[0];
  s.channels = x[1];
  s.points = num_elements(Shape(points.begin() + 1, points.end() - 1));
  if (s.pixels() > INT_MAX) fail(node.label(), ": an image of ", s.pixels(), " pixels is too large to be sampled");
  return s;
}

int taps_of(Interpolation mode) {
  return dispatch_taps(mode, [](auto taps) -> int { return taps(); });
}

bool supports_sampling(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i)) return false;
    if (spec.in_type(i) != spec.out_type() && spec.in_type(i) != DType::kInt64) return false;
  }
  return is_float_or_double(spec.out_type());
}

}  // namespace onnx_train
