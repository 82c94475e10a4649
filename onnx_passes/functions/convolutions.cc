// Bodies of the gradients of convolutions and pools. None depends on the number of spatial axes, and all sizes are
// read at run time. Attributes are those of Conv, auto_pad resolved.
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

constexpr int64_t kEnd = INT64_MAX;

constexpr const char* kWindows =
    "kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations, pads: ints = @pads, "
    "ceil_mode: int = @ceil_mode";
constexpr const char* kSteps = "strides: ints = @strides, dilations: ints = @dilations";

Term in_space(const Term& shape) { return slice(shape, {2}, {kEnd}); }

// The transposed convolution reaches from the first to the last element that any window has touched. Padding and
// elements behind the last window make the difference to x's size: padding is cut off, what no window touched is zero.
Term fitted(const Term& reached, const Term& reached_size, const Term& x_shape) {
  const Terms pads = x_shape.body()->ops("Split", 2, {x_shape.body()->attribute("pads")}, "num_outputs = 2");
  const Term add_end = in_space(x_shape) - reached_size + pads[0];
  const Term add = concat({{0, 0}, -pads[0], {0, 0}, add_end}, 0);
  return reshape(x_shape.body()->op("Pad", {reached, add}), x_shape);
}

Term conv_grad_input(Body& f, const Term& dy, const Term& w, const Term& x_shape) {
  const Term reached = f.op("ConvTranspose", {dy, w}, concat("group: int = @group, ", kSteps));
  return fitted(reached, shape_from(reached, 2), x_shape);
}

// dw[o, c, k] = sum over n, p of x[n, c, p stride + k dilation - pad] dy[n, o, p]: a convolution whose batch is c,
// whose channels are n, and in which strides and dilations have changed places. Groups stay groups of the channels n.
// It writes more than the kernel's size where the strides leave elements of x behind the last window: cut off.
Terms conv_grad_weight(Body& f, const Term& x, const Term& dy, const Term& w_shape) {
  const Term groups = reshape(f.attribute("group"), {1});
  const Term batch = shape(x, 0, 1), outs = shape(dy, 1, 2), ins = slice(w_shape, {1}, {2});
  const Term x_size = shape_from(x, 2), y_size = shape_from(dy, 2), w_size = in_space(w_shape);
  const Term x_flat = reshape(x, concat({batch, groups, ins, reduce_prod(x_size)}, 0));
  const Term image = reshape(transpose(x_flat, {2, 1, 0, 3}), concat({ins, groups * batch, x_size}, 0));
  const Term dy_flat = reshape(dy, concat({batch, outs, reduce_prod(y_size)}, 0));
  const Term filter = reshape(transpose(dy_flat, {1, 0, 2}), concat({outs, batch, y_size}, 0));
  const Term found =
      f.op("Conv", {image, filter},
           "group: int = @group, strides: ints = @dilations, dilations: ints = @strides, pads: ints = @pads");
  const Term ends = concat({ins, outs, w_size}, 0);
  const Term cut = slice(found, f.op("ConstantOfShape", {shape(ends)}, "value = int64[1] {0}"), ends);
  const Term dw_flat = transpose(reshape(cut, concat({ins, outs, reduce_prod(w_size)}, 0)), {1, 0, 2});
  return {reshape(dw_flat, w_shape), reshape(reduce_sum(dy_flat, {0, 2}, /*keepdims=*/false), outs)};
}

// The gradient of a window goes to its first largest element.
Term max_pool_grad(Body& f, const Term& dy, const Term& x) {
  const Term index = f.ops("MaxPool", 2, {x}, kWindows)[1], x_shape = shape(x);
  const Term none = zeros(reduce_prod(x_shape), dy);
  return reshape(scatter_add(none, reshape(index, {-1}), reshape(dy, {-1}), 0), x_shape);
}

// Each window hands dy / count back to its elements: a transposed convolution with a kernel of ones, channel by
// channel. The count is the convolution of ones, over the input or, with count_include_pad, over the padded input;
// what a window of ceil_mode covers beyond that never counts.
Term average_pool_grad(Body& f, const Term& dy, const Term& x_shape) {
  const auto ones = [&](const Term& size) {
    return cast_like(f.op("ConstantOfShape", {concat({{1, 1}, size}, 0)}, "value = float[1] {1}"), dy);
  };
  const Terms pads = f.ops("Split", 2, {f.attribute("pads")}, "num_outputs = 2");
  const Term &begin = pads[0], &end = pads[1];
  const Term kernel = f.attribute("kernel_shape"), filter = ones(kernel), y_size = shape_from(dy, 2), one = {1};
  const Term way = (y_size - one) * f.attribute("strides"), reach = (kernel - one) * f.attribute("dilations");
  const Term reached_size = way + reach + one;

  const Term include_pad = f.attribute("count_include_pad");
  const Term counted_size = in_space(x_shape) + (begin + end) * include_pad, before = begin - begin * include_pad;
  const Term around = concat({{0, 0}, before, {0, 0}, reached_size - (before + counted_size)}, 0);
  const Term count = f.op("Conv", {f.op("Pad", {ones(counted_size), around}), filter}, kSteps);

  const Term plane_count = reduce_prod(slice(x_shape, {0}, {2}));
  const Term share = reshape(dy, concat({plane_count, one, y_size}, 0)) / max(count, cast_like(one, dy));
  return fitted(f.op("ConvTranspose", {share, filter}, kSteps), reached_size, x_shape);
}

}  // namespace

std::vector<FunctionRow> convolution_functions() {
  return {
      function("ConvGradInput <group: int = 1, strides: ints, dilations: ints, pads: ints> (dy, w, int64 x_shape) => "
               "(dx)",
               conv_grad_input),
      function("ConvGradWeight <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, dy, int64 w_shape) => "
               "(dw, db)",
               conv_grad_weight),
      function("MaxPoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0> "
               "(dy, x) => (dx)",
               max_pool_grad),
      function("AveragePoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, "
               "count_include_pad: int = 0> (dy, int64 x_shape) => (dx)",
               average_pool_grad),
  };
}

}  // namespace onnx_train
