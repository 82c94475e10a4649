// Bodies of the gradients of convolutions and pools. None depends on the number of spatial axes, and all sizes are
// read at run time. Attributes are those of Conv, auto_pad resolved.
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// The transposed convolution reaches from the first to the last element that any window has touched. Padding and
// elements behind the last window make the difference to x's size: padding is cut off, what no window touched is zero.
constexpr const char* kConvGradInput = R"(
ConvGradInput <group: int = 1, strides: ints, dilations: ints, pads: ints> (dy, w, x_shape) => (dx)
{
  reached = ConvTranspose <group: int = @group, strides: ints = @strides, dilations: ints = @dilations> (dy, w)
  pads = Constant <value_ints: ints = @pads> ()
  begin, end = Split <num_outputs = 2> (pads)
  two = Constant <value_ints = [2]> ()
  last = Constant <value_ints = [9223372036854775807]> ()
  x_size = Slice (x_shape, two, last)
  reached_size = Shape <start = 2> (reached)
  missing = Sub (x_size, reached_size)
  add_end = Add (missing, begin)
  add_begin = Neg (begin)
  none = Constant <value_ints = [0, 0]> ()
  add = Concat <axis = 0> (none, add_begin, none, add_end)
  fitted = Pad (reached, add)
  dx = Reshape <allowzero = 1> (fitted, x_shape)
})";

// dw[o, c, k] = sum over n, p of x[n, c, p stride + k dilation - pad] dy[n, o, p]: a convolution whose batch is c,
// whose channels are n, and in which strides and dilations have changed places. Groups stay groups of the channels n.
// It writes more than the kernel's size where the strides leave elements of x behind the last window: cut off.
constexpr const char* kConvGradWeight = R"(
ConvGradWeight <group: int = 1, strides: ints, dilations: ints, pads: ints> (x, dy, w_shape) => (dw, db)
{
  one = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  last = Constant <value_ints = [9223372036854775807]> ()
  group = Constant <value_int: int = @group> ()
  groups = Reshape (group, one)
  batch = Shape <start = 0, end = 1> (x)
  outs = Shape <start = 1, end = 2> (dy)
  ins = Slice (w_shape, one, two)
  x_size = Shape <start = 2> (x)
  y_size = Shape <start = 2> (dy)
  w_size = Slice (w_shape, two, last)
  x_points = ReduceProd (x_size)
  y_points = ReduceProd (y_size)
  w_points = ReduceProd (w_size)

  x_flat_shape = Concat <axis = 0> (batch, groups, ins, x_points)
  x_flat = Reshape <allowzero = 1> (x, x_flat_shape)
  x_swapped = Transpose <perm = [2, 1, 0, 3]> (x_flat)
  channels = Mul (groups, batch)
  image_shape = Concat <axis = 0> (ins, channels, x_size)
  image = Reshape <allowzero = 1> (x_swapped, image_shape)

  y_flat_shape = Concat <axis = 0> (batch, outs, y_points)
  dy_flat = Reshape <allowzero = 1> (dy, y_flat_shape)
  dy_swapped = Transpose <perm = [1, 0, 2]> (dy_flat)
  filter_shape = Concat <axis = 0> (outs, batch, y_size)
  filter = Reshape <allowzero = 1> (dy_swapped, filter_shape)

  found = Conv <group: int = @group, strides: ints = @dilations, dilations: ints = @strides, pads: ints = @pads>
          (image, filter)
  ends = Concat <axis = 0> (ins, outs, w_size)
  rank = Shape (ends)
  starts = ConstantOfShape <value = int64[1] {0}> (rank)
  fitted = Slice (found, starts, ends)
  dw_swapped_shape = Concat <axis = 0> (ins, outs, w_points)
  dw_swapped = Reshape <allowzero = 1> (fitted, dw_swapped_shape)
  dw_flat = Transpose <perm = [1, 0, 2]> (dw_swapped)
  dw = Reshape <allowzero = 1> (dw_flat, w_shape)

  batch_and_points = Constant <value_ints = [0, 2]> ()
  sums = ReduceSum <keepdims = 0> (dy_flat, batch_and_points)
  db = Reshape <allowzero = 1> (sums, outs)
})";

// The gradient of a window goes to its first largest element.
constexpr const char* kMaxPoolGrad = R"(
MaxPoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, ceil_mode: int = 0> (dy, x) => (dx)
{
  y, index = MaxPool <kernel_shape: ints = @kernel_shape, strides: ints = @strides, dilations: ints = @dilations,
                      pads: ints = @pads, ceil_mode: int = @ceil_mode> (x)
  all = Constant <value_ints = [-1]> ()
  index_flat = Reshape (index, all)
  dy_flat = Reshape (dy, all)
  x_shape = Shape (x)
  flat_shape = ReduceProd (x_shape)
  zero = ConstantOfShape <value = float[1] {0}> (flat_shape)
  zeros = CastLike (zero, dy)
  dx_flat = ScatterElements <axis = 0, reduction = "add"> (zeros, index_flat, dy_flat)
  dx = Reshape <allowzero = 1> (dx_flat, x_shape)
})";

// Each window hands dy / count back to its elements: a transposed convolution with a kernel of ones, channel by
// channel. The count is the convolution of ones, over the input or, with count_include_pad, over the padded input;
// what a window of ceil_mode covers beyond that never counts.
constexpr const char* kAveragePoolGrad = R"(
AveragePoolGrad <kernel_shape: ints, strides: ints, dilations: ints, pads: ints, count_include_pad: int = 0>
                (dy, x_shape) => (dx)
{
  none = Constant <value_ints = [0, 0]> ()
  ones = Constant <value_ints = [1, 1]> ()
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  two = Constant <value_ints = [2]> ()
  last = Constant <value_ints = [9223372036854775807]> ()
  pads = Constant <value_ints: ints = @pads> ()
  begin, end = Split <num_outputs = 2> (pads)
  kernel = Constant <value_ints: ints = @kernel_shape> ()
  filter_shape = Concat <axis = 0> (ones, kernel)
  filter_ones = ConstantOfShape <value = float[1] {1}> (filter_shape)
  filter = CastLike (filter_ones, dy)

  planes = Slice (x_shape, zero, two)
  plane_count = ReduceProd (planes)
  y_size = Shape <start = 2> (dy)
  x_size = Slice (x_shape, two, last)
  stride = Constant <value_ints: ints = @strides> ()
  dilation = Constant <value_ints: ints = @dilations> ()
  steps = Sub (y_size, one)
  way = Mul (steps, stride)
  taps = Sub (kernel, one)
  reach = Mul (taps, dilation)
  way_and_reach = Add (way, reach)
  reached_size = Add (way_and_reach, one)

  include_pad = Constant <value_int: int = @count_include_pad> ()
  both_pads = Add (begin, end)
  counted_pads = Mul (both_pads, include_pad)
  counted_size = Add (x_size, counted_pads)
  counted_begin = Mul (begin, include_pad)
  before = Sub (begin, counted_begin)
  up_to = Add (before, counted_size)
  behind = Sub (reached_size, up_to)
  counted_shape = Concat <axis = 0> (ones, counted_size)
  counted_ones = ConstantOfShape <value = float[1] {1}> (counted_shape)
  counted = CastLike (counted_ones, dy)
  around = Concat <axis = 0> (none, before, none, behind)
  field = Pad (counted, around)
  count = Conv <strides: ints = @strides, dilations: ints = @dilations> (field, filter)
  one_like = CastLike (one, dy)
  count_or_one = Max (count, one_like)

  dy_shape = Concat <axis = 0> (plane_count, one, y_size)
  dy_planes = Reshape <allowzero = 1> (dy, dy_shape)
  share = Div (dy_planes, count_or_one)
  reached = ConvTranspose <strides: ints = @strides, dilations: ints = @dilations> (share, filter)
  missing = Sub (x_size, reached_size)
  add_end = Add (missing, begin)
  add_begin = Neg (begin)
  add = Concat <axis = 0> (none, add_begin, none, add_end)
  fitted = Pad (reached, add)
  dx = Reshape <allowzero = 1> (fitted, x_shape)
})";

}  // namespace

std::vector<FunctionRow> convolution_functions() {
  return {
      function("ConvGradInput", kConvGradInput),
      function("ConvGradWeight", kConvGradWeight),
      function("MaxPoolGrad", kMaxPoolGrad),
      function("AveragePoolGrad", kAveragePoolGrad),
  };
}

}  // namespace onnx_train
