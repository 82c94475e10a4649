#include "kernels/geometry/channels.h"

namespace onnx_train {

bool has_channel_values(const NodeSpec& spec, int images, DType stored, DType computed) {
  const Shape shape = spec.in_shape(0);
  if (shape.size() < 2 || spec.in_type(0) != stored) return false;
  for (int i = 1; i < spec.num_inputs(); ++i) {
    if (!spec.has_input(i) || spec.in_type(i) != (i < images ? computed : stored)) return false;
    if (spec.in_shape(i) != (i < images ? Shape{shape[1]} : shape)) return false;
  }
  return true;
}

Groups::Groups(const NodeSpec& spec) : Channels(spec.in_shape(0)) {
  const int64_t groups = spec.node().attr("num_groups", channels);
  per_group = groups > 0 ? channels / groups : 1;
}

bool has_groups(const NodeSpec& spec) {
  const Shape shape = spec.in_shape(0);
  if (shape.size() < 2 || spec.in_size(1) != shape[1]) return false;
  const bool is_gradient = spec.node().op() == "GroupNormalizationGrad";
  if (spec.in_shape(2) != (is_gradient ? shape : Shape{shape[1]})) return false;  // dy, or the bias
  const int64_t groups = spec.node().attr("num_groups", shape[1]);
  return groups > 0 ? shape[1] % groups == 0 : shape[1] == 0;
}

}  // namespace onnx_train
