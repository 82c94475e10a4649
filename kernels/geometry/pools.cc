#include "kernels/geometry/pools.h"

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

Pooling find_pooling(const NodeSpec& spec, const Shape& x, const Shape& y) {
  const auto windows = find_windows(spec.node());
  if (!windows || x.size() != y.size() || !has_spatial_axes(x) || x[0] != y[0] || x[1] != y[1]) {
    fail(spec.node().label(), ": a pool of ", to_string(x), " to ", to_string(y), " does not exist");
  }
  return {make_geometry(*windows, x, y), x[0] * x[1], spec.node().attr("count_include_pad", 0) != 0};
}

Shape unpooled_shape(const NodeSpec& spec, const Shape& y) {
  Shape shape = spec.in_shape();
  const size_t axes = shape.size() - 2;
  const Node& node = spec.node();
  const Shape kernel = node.attr("kernel_shape", Shape(axes, 1)), strides = node.attr("strides", Shape(axes, 1));
  const Shape pads = node.attr("pads", Shape(2 * axes, 0));
  const bool has_all = kernel.size() == axes && strides.size() == axes && pads.size() == 2 * axes;
  if (!has_all || y.size() != shape.size()) {
    fail(node.label(), ": kernel_shape, strides and pads must have ", axes, ", ", axes, " and ", 2 * axes, " numbers");
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t& size = shape[i];
    bool fits = true;
    if (i >= 2) {
      const size_t a = i - 2;
      fits = !__builtin_mul_overflow(size - 1, strides[a], &size) && !__builtin_add_overflow(size, kernel[a], &size) &&
             !__builtin_sub_overflow(size, pads[a], &size) && !__builtin_sub_overflow(size, pads[a + axes], &size);
    }
    if (!fits || size < 0 || size > y[i]) {
      fail(node.label(), ": unpooling ", to_string(spec.in_shape()), " does not fit into an output of ", to_string(y));
    }
  }
  return shape;
}

WindowGeometry column_geometry(const NodeSpec& spec) {
  const Shape x = spec.in_shape(0), y = spec.out_shape(), sizes(y.begin() + 2, y.end());
  const Windows w = windows_of(spec.node(), spec.constant(2).to_ints());
  Shape windows = y;
  int64_t taps = y[1], count = 1;
  bool fits = w.kernel.size() == sizes.size() && spec.constant(1).to_ints() == sizes;
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    windows[i + 2] = w.counts(sizes)[i];
    fits = !__builtin_mul_overflow(taps, w.kernel[i], &taps) && !__builtin_mul_overflow(count, windows[i + 2], &count);
  }
  if (!fits || x != Shape{y[0], taps, count})
    fail(spec.node().label(), ": the columns ", to_string(x), " do not make ", to_string(y), " of blocks ",
         to_string(w.kernel));
  return make_geometry(w, y, windows);
}

bool supports_columns(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && spec.is_constant(1) && spec.is_constant(2) &&
         has_spatial_axes(spec.out_shape());
}

}  // namespace onnx_train
