#include "kernels/geometry/convolutions.h"

#include <algorithm>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

Convolution convolution(const NodeSpec& spec, const Shape& image_x, const Shape& w, const Shape& image_y) {
  const Node& node = spec.node();
  const Shape x = channels_first(spec, image_x), y = channels_first(spec, image_y);
  const int64_t group = node.attr("group", 1);
  const bool fits = x.size() == w.size() && y.size() == w.size() && w.size() >= 3 && group > 0 && x[0] == y[0] &&
                    w[0] == y[1] && w[0] % group == 0 && x[1] % group == 0 && x[1] / group == w[1];
  if (!fits) {
    fail(node.label(), ": a convolution of ", to_string(x), " with ", to_string(w), " in ", group, " groups to ",
         to_string(y), " does not exist; check channels and the group attribute");
  }
  auto windows = find_windows(node);
  if (!windows) fail(node.label(), ": its windows are not known");
  windows->kernel.assign(w.begin() + 2, w.end());
  return {x, w, y, group, *windows, is_channels_last(spec.node()), spec.in_type()};
}

// Throws Error unless the bias is absent or has one element per output channel.
void expect_bias(const NodeSpec& spec, int input, int64_t channels) {
  if (spec.has_input(input) && spec.in_shape(input) != Shape{channels})
    fail(spec.node().label(), ": its bias is ", to_string(spec.in_shape(input)), "; it has ", channels,
         " output channels");
}

}  // namespace

Shape channels_first(const NodeSpec& spec, Shape shape) {
  if (is_channels_last(spec.node()) && shape.size() > 2) std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
  return shape;
}

Convolution conv(const NodeSpec& spec) {
  const Convolution c = convolution(spec, spec.in_shape(0), spec.in_shape(1), spec.out_shape());
  expect_bias(spec, 2, c.w[0]);
  return c;
}

Convolution conv_transpose(const NodeSpec& spec) {
  const Convolution c = convolution(spec, spec.out_shape(), spec.in_shape(1), spec.in_shape(0));
  expect_bias(spec, 2, c.x[1]);
  return c;
}

Convolution conv_grad_input(const NodeSpec& spec) {
  return convolution(spec, spec.out_shape(), spec.in_shape(1), spec.in_shape(0));
}

Convolution conv_grad_weight(const NodeSpec& spec) {
  const Convolution c = convolution(spec, spec.in_shape(0), spec.out_shape(), spec.in_shape(1));
  if (spec.has_output(1) && spec.out_shape(1) != Shape{c.w[0]})
    fail(spec.node().label(), ": its second output must have one number for each of ", c.w[0], " channels");
  return c;
}

bool has_one_output_type(const NodeSpec& spec) { return !spec.has_output(1) || spec.out_type(1) == spec.out_type(); }

bool has_image_axes(const NodeSpec& spec) { return spec.in_shape().size() >= 3 && spec.in_shape().size() <= 5; }

}  // namespace onnx_train
